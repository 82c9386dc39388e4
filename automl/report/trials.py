"""The trials as rows of data, once for all charts, and the tooltip of the trial under the pointer."""

from collections.abc import Sequence
from typing import Any

import altair as alt
from optuna.distributions import CategoricalDistribution

from automl.report.read import Search, Trial
from automl.report.words import is_site, site, value
from search.record import State

TRIALS = "trials"
COSTS = ("time_ratio", "latency", "params", "macs")


def rows(search: Search) -> list[dict[str, Any]]:
    """A row of each trial that has a score yet, with its parameters: numbers as they are, others in words."""
    keys = columns(search)
    sites = {name for name in keys if is_site(name, search.trials)}
    result = []
    for trial in search.trials:
        score = search.final(trial)
        if score is None or score != score:
            continue
        row: dict[str, Any] = {
            "trial": trial.number, "what": trial.where, "kind": trial.kind, "state": str(trial.state),
            "score": float(f"{score:.6g}"), "epochs": round(trial.resource, 2),
        }  # fmt: skip
        if trial.record.steps is not None:
            row["steps"] = trial.record.steps
        row |= {key: float(f"{v:.5g}") for key in COSTS if (v := trial.record.profile.get(key)) is not None}
        row |= {keys[name]: _cell(name, trial, sites) for name in trial.params}
        if trial.number in search.links:
            row["link"] = search.links[trial.number]
        result.append(row)
    return result


def columns(search: Search) -> dict[str, str]:
    """The field of each parameter: their names may hold what a field's name cannot."""
    names = sorted({name for trial in search.trials for name in trial.params})
    return {name: f"p{i}" for i, name in enumerate(names)}


def _cell(name: str, trial: Trial, sites: set[str]) -> Any:
    if name in sites:
        return site(name, trial)
    thing = trial.params[name]
    if isinstance(trial.distributions[name], CategoricalDistribution):
        return value(thing)
    return float(f"{thing:.5g}") if isinstance(thing, float) else thing


def source(search: Search) -> dict[str, list[dict[str, Any]]]:
    """The data of a figure about trials."""
    return {TRIALS: search.rows}


def pointer_selection(search: Search, *more: alt.Tooltip) -> dict[str, Any]:
    """The encodings of a mark that stands for a trial: what it is, and its run in MLflow as a link."""
    tips = [
        alt.Tooltip("trial:Q", title="trial", format="d"),
        alt.Tooltip("what:N", title="placement"),
        alt.Tooltip("score:Q", title=search.label, format=".4~g"),
        alt.Tooltip("epochs:Q", title="epochs", format="~g"),
        alt.Tooltip("steps:Q", title="steps", format="d"),
        *more,
        alt.Tooltip("state:N", title="state"),
    ]
    return {"tooltip": tips, **({"href": alt.Href("link:N")} if search.links else {})}


def state(*wanted: State) -> str:
    """A filter for trials in these states."""
    return " || ".join(f"datum.state === '{state_name}'" for state_name in wanted)


def scored(search: Search, trials: Sequence[Trial]) -> list[float]:
    """The scores of trials that have one, at their last epoch."""
    return [score for trial in trials if (score := search.final(trial)) is not None and score == score]

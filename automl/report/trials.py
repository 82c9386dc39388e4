"""Trials as rows of data, once for all charts, and the tooltip of a trial."""

from typing import Any

import altair as alt

from automl.report.read import SearchData

TRIALS = "trials"
COSTS = ("time_ratio", "latency", "params", "macs")


def rows(search: SearchData) -> list[dict[str, Any]]:
    """Return a row for each trial with a score."""
    result = []
    for trial in search.trials:
        score = search.final(trial)
        if score is None or score != score:
            continue
        row: dict[str, Any] = {
            "trial": trial.number, "what": search.where(trial), "kind": trial.kind, "state": str(trial.state),
            "score": float(f"{score:.6g}"), "epochs": round(trial.resource, 2),
        }  # fmt: skip
        if trial.steps is not None:
            row["steps"] = trial.steps
        row |= {key: float(f"{v:.5g}") for key in COSTS if (v := trial.profile.get(key)) is not None}
        if trial.number in search.links:
            row["link"] = search.links[trial.number]
        result.append(row)
    return result


def source(search: SearchData) -> dict[str, list[dict[str, Any]]]:
    """Return the data of a figure about trials."""
    return {TRIALS: search.rows}


def pointer_selection(search: SearchData, *more: alt.Tooltip) -> dict[str, Any]:
    """Return the encodings of a mark for a trial: its tooltip, and a link to its run in MLflow."""
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

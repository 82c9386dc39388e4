"""Table of all trials, failed trials by reason, and instructions to repeat the search."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain

from automl.base.escape import shell
from automl.base.serialise import to_json
from automl.report import style
from automl.report.figure import Cell, Table
from automl.report.read import SearchData
from search.record import State, TrialRecord, format_options, model_options

KEPT = ("trial", "state", "what", "epochs", "steps")  # columns with one value that are kept
SHOWN = 12  # trials of a group of failures that are named
_json = partial(json.dumps, indent=2)
WORDS = 200  # letters of a reason in a row; the groups and `error.txt` have all of it


@dataclass(frozen=True, kw_only=True)
class Listing:
    """Table of the trials.

    Attributes:
        table: The columns that differ between trials.
        same: The columns with one value in all trials, which are listed beside the table.
    """

    table: Table
    same: Mapping[str, Cell]


def listing(search: SearchData) -> Listing:
    """Return the trials by number, with the columns in which they differ."""
    whole = _columns(search) if search.metadata.has_trials else _runs(search)
    same = {
        name: cells[0]
        for name, cells in whole.items()
        if (name not in KEPT or cells[0] is None) and all(cell == cells[0] for cell in cells)
    }
    shown = {name: cells for name, cells in whole.items() if name not in same}
    rows = [list(row) for row in zip(*shown.values(), strict=True)]
    return Listing(
        table=Table(columns=list(shown), rows=rows),
        same={name: cell for name, cell in same.items() if cell is not None},
    )


def _columns(search: SearchData) -> dict[str, list[Cell]]:
    costs = {"time_ratio": "time ratio", "latency": "latency, ms", "params": "parameters", "macs": "MACs"}
    values = [trial.config.training.hyperparameters() for trial in search.trials]
    learned = [name for name in dict.fromkeys(chain.from_iterable(values)) if name != "epochs"]
    columns = [
        "trial", "role", "state", "kind", "what", "backbone", "options", search.plan.metric.label, "epochs",
        "steps", *costs.values(), "time ratio by", *(name.replace("_", " ") for name in learned), "seed",
    ]  # fmt: skip
    rows: list[list[Cell]] = []
    for trial, chosen in zip(search.trials, values, strict=True):
        rows.append([
            trial.number, str(trial.role), _state(trial), trial.kind, search.where(trial),
            trial.config.model.backbone,
            format_options(model_options(trial.config)) or None, search.final(trial), trial.resource or None,
            trial.steps, *(trial.profile.get(cost) for cost in costs), _by(trial.profile),
            *(chosen.get(name) for name in learned), trial.config.seed,
        ])  # fmt: skip
    return {name: [row[i] for row in rows] for i, name in enumerate(columns)}


def _runs(search: SearchData) -> dict[str, list[Cell]]:
    """Return the columns of the runs of commands."""

    def spent(trial: TrialRecord, name: str) -> float | None:
        return trial.history[-1].get(name) if trial.history else None

    return {
        "trial": [trial.number for trial in search.trials],
        "what": [trial.variant for trial in search.trials],
        "seed": [str(trial.config.seed) for trial in search.trials],
        "state": [_state(trial) for trial in search.trials],
        search.plan.metric.label: [search.final(trial) for trial in search.trials],
        "seconds": [spent(trial, "seconds") for trial in search.trials],
        "processor seconds": [spent(trial, "processor_seconds") for trial in search.trials],
    }


def _state(trial: TrialRecord) -> str:
    reason = trial.reason
    failed = trial.state in (State.INFEASIBLE, State.ERROR) and reason
    return f"{trial.state}: {reason[:WORDS]}" if failed and reason else trial.condition


def _by(profile: Mapping[str, float]) -> str | None:
    if "time_ratio" not in profile:
        return None
    return "imprecise timings" if profile.get("time_ratio_imprecise") else "timings"


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """Instructions to repeat a search.

    Attributes:
        lines: Short lines by title, such as hardware and seeds.
        configs: Configurations as JSON, by title.
    """

    command: str
    lines: Mapping[str, str]
    versions: Mapping[str, str]
    configs: Mapping[str, str]


def repeat(search: SearchData) -> Repeat:
    """Return the instructions from `search.json`, the best trials and the latest confirmation."""
    metadata = search.metadata
    source = metadata.provenance
    gpus = [f"{count} × {name}" for name, count in Counter(source.gpus).items()]
    lines = {
        **metadata.origin,
        "started": source.started or "unknown",
        "code": source.commit or "not from a git checkout",
        "system": f"{source.system or 'unknown'}, Python {source.python or 'unknown'}",
        "hardware": f"{source.cores or '?'} CPU cores, {', '.join(gpus) or 'no GPU'}",
    }
    lines["seeds"] = f"sampler and trials {metadata.settings.question.seed}"
    if not metadata.has_trials:
        lines["seeds"] = ", ".join(sorted({str(trial.config.seed) for trial in search.trials}))
    elif search.verdicts:
        seeds = sorted({int(seed) for variant in search.verdicts[-1].variants for seed in variant.scores})
        lines["seeds"] += f"; confirmation {', '.join(map(str, seeds))}" if seeds else ""
    configs = {}
    for title, trial in (("best trial", search.best), ("best baseline", search.baseline)):
        if trial is not None:
            configs[f"{title}: trial {trial.number}, {search.where(trial)}"] = _json(trial.config.to_json())
    for variant in search.verdicts[-1].variants if search.verdicts else ():
        several = {"placements, one a seed": to_json(variant.placements)} if variant.placements else {}
        configs[f"confirmed, {variant.role}: {variant.name}"] = _json(variant.config.to_json() | several)
    configs["all settings of the search"] = _json(to_json(metadata.settings))
    return Repeat(command=shell(source.command), lines=lines, versions=source.versions, configs=configs)


def failures(search: SearchData) -> Table:
    """Return the failed trials by reason, the largest group first. Reasons may differ in numbers."""
    groups = defaultdict(list)
    for trial in search.trials:
        if trial.state in (State.INFEASIBLE, State.ERROR):
            reason = trial.reason or "no reason was given"
            form = re.sub(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?[kMGT]?", "#", reason)
            groups[trial.state, form].append((reason, trial))
    rows: list[list[Cell]] = []
    for (state, _), failed in sorted(groups.items(), key=lambda group: -len(group[1])):
        numbers = ", ".join(str(trial.number) for _, trial in failed[:SHOWN])
        if len(failed) > SHOWN:
            numbers += f" and {len(failed) - SHOWN} more"
        counts = Counter(kind for _, trial in failed for kind in trial.types)
        kinds = ", ".join(f"{kind} {counts[kind]}" for kind in style.order(counts))
        rows.append([str(state), len(failed), failed[0][0], kinds, numbers])
    return Table(columns=["state", "trials", "reason (of the first)", "types", "numbers"], rows=rows)

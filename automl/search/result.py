"""The result of a search, as an object and as JSON."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from automl.base.command_line import STORAGE
from automl.base.serialise import to_json
from automl.base.summary import Summary, call
from automl.callbacks.retention import front
from automl.config.settings import Settings
from automl.tracking.run_spec import flat
from search.config import TrialConfig
from search.grid_scheduler import GridScheduler
from search.record import (
    State,
    TrialRecord,
    describe_placement,
    format_options,
    model_name,
    model_options,
    placement_key,
)
from search.search_scheduler import SearchScheduler
from search.trial_scheduler import Plan, rank_trials, select_leaders

if TYPE_CHECKING:
    import pandas

    from automl.report.figure import Table

LEADING = 5


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """Trial of a search.

    Attributes:
        number: The number of the trial.
        run_id: The ID of its run in MLflow, or None if MLflow does not have it.
        metric: The name of the primary metric.
        value: The primary metric after the last epoch.
        objectives: The value of each objective.
        profile: The measurements before training: parameters, MACs, memory, latency, time ratio.
        config: The configuration, as in `TrialConfig.to_json`.
        expected: The primary metric by the model of placements, which then ranks the trials. None if there is
            no such model.
        steps: The training steps.

    Example:
        After the example of `run_search`:

        >>> trial = result.best
        >>> trial.metric, trial.value == trial.objectives["accuracy"]
        ('accuracy', True)
    """

    number: int
    run_id: str | None
    metric: str
    value: float
    objectives: dict[str, float]
    profile: dict[str, float]
    config: dict[str, Any]
    expected: float | None = None
    steps: int | None = None

    def __str__(self) -> str:
        options = format_options(model_options(TrialConfig.from_json(self.config)))
        more = f", {options}" if options else ""
        return f"{self.metric} {self.summary}, trial {self.number}: {self._attention}{more}"

    @property
    def about(self) -> str:
        """Backbone with options, and placement."""
        return f"{model_name(TrialConfig.from_json(self.config))}, {self._attention}"

    @property
    def _attention(self) -> str:
        config = TrialConfig.from_json(self.config)
        return describe_placement(config)

    @property
    def summary(self) -> str:
        """Value, expected value and training steps in one line."""
        more = "" if self.expected is None else f" (expected {self.expected:.4f})"
        steps = "" if self.steps is None else f" after {self.steps} steps"
        return f"{self.value:.4f}{more}{steps}"


@dataclass(frozen=True, kw_only=True, repr=False)
class SearchResult(Summary):
    """Result of a search. Its `repr` is a few lines, and a table in notebooks.

    Functions that take the name of a search also take its result.

    Attributes:
        search: The name of the search.
        space: The name of the space.
        storage: The folder or object store that the search is in.
        n_trials: The number of trials that have started.
        completed: The number of completed trials.
        pruned: The number of pruned trials.
        infeasible: The number of infeasible trials.
        errors: The number of trials that ended in an error.
        running: The number of trials that have not ended.
        seconds: The duration of this run of the search.
        hours: The device hours of training, over all runs of the search.
        best: The best trial by the first objective, or None if none has completed.
        baseline: The best trial without attention, or None if none has completed.
        leading: The best trials by the first objective, five at most.
        front: With several objectives, the trials that no other one dominates.
        stopped: True if the search was interrupted and can be resumed.
        folder: The folder of the search, with its study, checkpoints and log.
        failure: The first error, or None.
        untracked: The number of trials that MLflow does not have in full.
        page: The address of the runs in MLflow.
        warnings: Reasons to doubt the result.
        placement_verdict: The reason why a search of placements ended early, or an empty text.
        saved: The number of planned trials that an early end made unnecessary.
        missing: Of a grid, the cells without a result, with the reason.
        grid: The table of a grid.
        objectives: The names of the objectives.
        records: The record of each trial.
        runs: The run of each trial in MLflow, by its number.

    Example:
        After the example of `run_search`:

        >>> result.completed + result.pruned + result.infeasible
        3
        >>> list(result.trials["number"])
        [0, 1, 2]
    """

    search: str
    space: str
    storage: str
    n_trials: int
    completed: int
    pruned: int
    infeasible: int
    errors: int
    running: int
    seconds: float
    hours: float
    best: TrialResult | None
    baseline: TrialResult | None
    leading: list[TrialResult]
    front: list[TrialResult]
    stopped: bool
    folder: str
    failure: str | None
    untracked: int
    page: str
    warnings: list[str]
    placement_verdict: str = ""
    saved: int = 0
    missing: list[str] = field(default_factory=list)
    grid: "Table | None" = None
    objectives: list[str] = field(default_factory=list)
    records: list[TrialRecord] = field(default_factory=list)
    runs: Mapping[int, str] = field(default_factory=dict)

    @property
    def trials(self) -> "pandas.DataFrame":
        """Table with one row per trial, sorted by number.

        The columns are number, state, role and placement; the parameters as in MLflow; the objectives after
        the last epoch, if the trial has them; epochs_done, steps and seconds of training; and the MLflow
        run_id.
        """
        import pandas  # takes half a second

        rows = sorted(map(self._row, self.records), key=lambda row: int(row["number"]))
        return pandas.DataFrame(rows)

    def _row(self, record: TrialRecord) -> dict[str, Any]:
        return {
            "number": record.number,
            "state": str(record.state),
            "role": str(record.role),
            "placement": placement_key(record.config),
            **flat(record.config),
            **{name: record.value(name) if record.has(name) else None for name in self.objectives},
            "epochs_done": len(record.history),
            "steps": record.steps,
            "seconds": sum(metrics["seconds"] for metrics in record.history),
            "run_id": self.runs.get(record.number),
        }

    def to_json(self) -> dict[str, Any]:
        """Return the content of `result.json`, which `--json` prints."""
        excluded = ("records", "runs", "space", "storage", "grid")
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        keys = {"n_trials": "trials", "placement_verdict": "decided"}
        return {
            keys.get(name, name): to_json(value) for name, value in values.items() if name not in excluded
        }

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield the lines that the command prints, as label and text."""
        yield "search", self.search
        yield "space", self.space
        states = ("completed", "pruned", "infeasible", "errors", "running")
        counts = [f"{count} {state}" for state in states if (count := getattr(self, state))]
        yield "trials", f"{self.n_trials}: {', '.join(counts)}" if counts else "none"
        for name, trial in (("best", self.best), ("baseline", self.baseline)):
            yield name, "no trial completed" if trial is None else str(trial)
        if self.placement_verdict:
            yield "placements", f"{self.placement_verdict}. {self.saved} planned trials were not needed"
        for warning in self.warnings:
            yield "warning", warning
        if self.missing:
            yield "missing", missing_cells(self.missing)
        if self.failure:
            yield "error", self.failure
        yield "folder", self.folder
        storage = None if self.storage == STORAGE else self.storage
        if self.stopped:
            yield "next", call("resume_search", self.search, storage=storage)
        elif self.best is not None:
            yield "next", call("run_confirm", self.search, storage=storage)


def make_result(
    folder: Path,
    name: str,
    scheduler: SearchScheduler | GridScheduler,
    *,
    settings: Settings,
    runs: Mapping[int, str],
    begun: float,
    untracked: int,
    page: str,
    devices: float,
) -> SearchResult:
    """Create the result of a search.

    Args:
        folder: Folder of the search.
        name: Name of the search.
        scheduler: Scheduler with the records of the trials.
        settings: Settings of the search.
        runs: MLflow run of each trial.
        begun: Start of the search on the monotonic clock [s].
        untracked: Number of trials that MLflow lacks.
        page: Address of the search's page in MLflow, or nothing.
        devices: Number of devices of a trial.
    """
    plan, records = scheduler.plan, list(scheduler.records.values())
    counts = Counter(record.state for record in records)
    best, baseline = select_leaders(records, plan)

    def result_of(trial: TrialRecord | None) -> TrialResult | None:
        if trial is None:
            return None
        return TrialResult(
            number=trial.number,
            run_id=runs.get(trial.number),
            metric=plan.metric.name,
            value=trial.value(plan.metric.name),
            objectives={name: trial.value(name) for name in plan.objectives},
            profile=trial.profile,
            expected=trial.expected,
            config=trial.config.to_json(),
            steps=trial.steps,
        )

    several = len(plan.objectives) > 1
    verdict = scheduler.placement_verdict if isinstance(scheduler, SearchScheduler) else ""
    return SearchResult(
        search=name,
        space=settings.space_name,
        storage=settings.storage,
        n_trials=len(records),
        completed=counts[State.COMPLETE],
        pruned=counts[State.PRUNED],
        infeasible=counts[State.INFEASIBLE],
        errors=counts[State.ERROR],
        running=counts[State.RUNNING],
        seconds=round(time.monotonic() - begun, 1),
        hours=sum(metrics["seconds"] for r in records for metrics in r.history) * devices / 3600,
        best=result_of(best),
        baseline=result_of(baseline),
        leading=[result for r in rank_trials(records, plan)[:LEADING] if (result := result_of(r))],
        front=[result for r in front(records, plan) if (result := result_of(r))] if several else [],
        stopped=counts[State.RUNNING] > 0,
        folder=str(folder),
        failure=next((r.reason for r in records if r.state is State.ERROR), None),
        untracked=untracked,
        page=page,
        warnings=_warnings(records, plan),
        placement_verdict=verdict,
        saved=max(0, (plan.trials or 0) - len(records)) if verdict else 0,
        missing=list(map(str, scheduler.missing)) if isinstance(scheduler, GridScheduler) else [],
        objectives=list(plan.objectives),
        records=records,
        runs=dict(runs),
    )


def missing_cells(cells: Sequence[str]) -> str:
    """Return a sentence that names the cells of a grid without a result."""
    count = f"{len(cells)} trainings" if len(cells) > 1 else "1 training"
    return f"{count} of the grid without a result: {'; '.join(cells)}"


def _warnings(records: list[TrialRecord], plan: Plan) -> list[str]:
    done = [record for record in records if record.state is State.COMPLETE]
    if not done or not all(plan.guesses(record) for record in done):
        return []
    metric = plan.metric
    best = max((record.value(metric.name) for record in done), key=lambda value: metric.sign * value)
    return [
        f"train longer (--epochs) or validate on more data: no trial beats chance. The best validation "
        f"{metric.name} is {best:.3f}, and guessing may reach {plan.guessing:.3f}"
    ]

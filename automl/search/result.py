"""The result of a search: its trials, and what they show."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from automl.base.options import STORAGE
from automl.base.terminal import Summary, call
from automl.base.units import pluralize
from automl.report.read import SearchData
from automl.tracking.run_spec import flat
from search import record
from search.fixed_scheduler import find_missing
from search.record import State, TrialRecord
from search.study import CELLS, read_attribute
from search.trial_scheduler import rank_trials, select_leaders

if TYPE_CHECKING:
    import pandas

    from automl.report.figure import Table

LEADING = 5
RESULT_FILE = "result.json"


@dataclass(frozen=True, kw_only=True, repr=False)
class SearchResult(Summary, SearchData):
    """Trials of a search, and what they show. Its `repr` is a few lines, and a table in notebooks.

    Attributes:
        seconds: The duration of the last run of the search.
        devices: The number of devices (GPUs or cores) of one trial in it.
        untracked: The number of trials that MLflow did not have in full at its end.
        page: The address of the runs in MLflow.
        runs: The ID of each trial's run in MLflow, by its number. Empty if the search was loaded.
    """

    seconds: float = 0.0
    devices: float = 1.0
    untracked: int = 0
    page: str = ""
    runs: Mapping[int, str] = field(default_factory=dict)

    @property
    def space(self) -> str:
        """Return the name of the space."""
        return self.metadata.settings.question.space_name

    @property
    def hours(self) -> float:
        """Return the device hours of training, over all runs of the search."""
        return sum(epoch["seconds"] for trial in self.trials for epoch in trial.history) * self.devices / 3600

    @cached_property
    def _leaders(self) -> tuple[TrialRecord | None, TrialRecord | None]:
        return select_leaders(self.trials, self.plan)

    @property
    def leading(self) -> list[TrialRecord]:
        """Return the best trials five at most."""
        return rank_trials(self.trials, self.plan)[:LEADING]

    def best_with_full(self, full: int) -> TrialRecord | None:
        """Return the best trial of a decoder with so many layers of its own attention, or None."""
        models = ((trial, trial.config.model) for trial in rank_trials(self.trials, self.plan))
        return next((trial for trial, m in models if m.kinds.count(m.own_layer) == full), None)

    @property
    def stopped(self) -> bool:
        """Return True if trials have not ended: the search is running, or can be resumed."""
        return self.unfinished > 0

    @property
    def failure(self) -> str | None:
        """Return the first error of a trial, or None."""
        return next((trial.reason for trial in self.trials if trial.state is State.ERROR), None)

    @cached_property
    def missing(self) -> list[str]:
        """Return the cells of a grid without a result, with the reason."""
        settings = self.metadata.settings
        cells = read_attribute(self.folder, self.metadata.name, CELLS) if settings.plan.is_grid else None
        return find_missing(self.trials, cells or (), settings.grid_seeds)

    @cached_property
    def grid(self) -> "Table | None":
        """Return the table of a grid. None for other searches."""
        if not self.metadata.settings.plan.is_grid or not self.trials:
            return None
        from automl.report.grid_table import grid_table  # importing plots takes seconds

        return grid_table(self)

    def trials_dataframe(self) -> "pandas.DataFrame":
        """Return a table with one row per trial, sorted by number.

        The columns are number; the metric after the last epoch, if the trial has it; state, placement
        and role; the parameters as in MLflow; epochs_done, steps and seconds; and the MLflow run_id.
        """
        import pandas  # takes half a second

        return pandas.DataFrame(map(self._row, self.trials))

    def _row(self, trial: TrialRecord) -> dict[str, Any]:
        return {
            "number": trial.number,
            self.metric: trial.value(self.metric) if trial.has(self.metric) else None,
            "state": str(trial.state),
            "placement": record.placement_key(trial.config),
            "role": str(trial.role),
            **flat(trial.config),
            "epochs_done": trial.history[-1]["epoch"] if trial.history else 0,
            "steps": trial.steps,
            "seconds": sum(metrics["seconds"] for metrics in trial.history),
            "run_id": self.runs.get(trial.number),
        }

    def describe(self, trial: TrialRecord) -> str:
        """Return the score of a completed trial, its number and its attention in one line."""
        options = record.format_options(record.model_options(trial.config))
        attention = record.describe_placement(trial.config) + (f", {options}" if options else "")
        return f"{self.describe_score(trial)}, trial {trial.number}: {attention}"

    def describe_score(self, trial: TrialRecord) -> str:
        """Return metric, expected metric and training steps of a completed trial."""
        name, show = self.metric, self.plan.metric.show
        expected = "" if trial.expected is None else f" (expected {show(trial.expected)})"
        steps = "" if trial.steps is None else f" after {pluralize(trial.steps, 'steps')}"
        return f"{name} {show(trial.value(name))}{expected}{steps}"

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield the lines that describe the search, as label and text."""
        yield "search", self.search
        yield "space", self.space
        counts = [f"{self.counts[state]} {name}" for name, state in STATES.items() if self.counts[state]]
        yield "trials", f"{len(self.trials)}: {', '.join(counts)}" if counts else "none"
        for name, trial in (("best", self.best), ("baseline", self.baseline)):
            yield name, "no trial completed" if trial is None else self.describe(trial)
        for warning in self.warnings:
            yield "warning", warning
        if self.missing:
            yield "missing", missing_cells(self.missing)
        if self.failure:
            yield "error", self.failure
        if self.verdicts:
            yield "verdict", self.verdicts[-1].lines[0]
        yield "folder", str(self.folder)
        if self.at_chance and not self.stopped:
            advice = "search again as the warning says: a confirmation of these trials would show nothing"
            yield "next", advice
        elif (verb := self._next()) is not None:
            storage = None if self.storage == STORAGE else self.storage
            yield "next", f"{call('load', self.search, storage=storage)}.{verb}()"

    def _next(self) -> str | None:
        """Return the method to call next."""
        if self.stopped:
            return "resume"
        if self.best is None:
            return None
        return "export" if self.verdicts and self.verdicts[-1].complete else "confirm"

    def to_json(self) -> dict[str, Any]:
        """Return the content of `result.json`, which `--json` prints."""
        return {
            "search": self.search,
            "trials": len(self.trials),
            **{name: self.counts[state] for name, state in STATES.items()},
            "seconds": self.seconds,
            "hours": self.hours,
            "devices": self.devices,
            "best": None if self.best is None else self._trial_json(self.best),
            "baseline": None if self.baseline is None else self._trial_json(self.baseline),
            "leading": list(map(self._trial_json, self.leading)),
            "stopped": self.stopped,
            "folder": str(self.folder),
            "failure": self.failure,
            "untracked": self.untracked,
            "page": self.page,
            "warnings": self.warnings,
            "missing": self.missing,
        }

    def _trial_json(self, trial: TrialRecord) -> dict[str, Any]:
        return {
            "number": trial.number,
            "run_id": self.runs.get(trial.number),
            "metric": self.metric,
            "value": trial.value(self.metric),
            "profile": dict(trial.profile),
            "config": trial.config.to_json(),
            "expected": trial.expected,
            "steps": trial.steps,
        }


# The names of the states in `result.json` and in texts.
STATES = {
    "completed": State.COMPLETE,
    "pruned": State.PRUNED,
    "infeasible": State.INFEASIBLE,
    "errors": State.ERROR,
    "running": State.RUNNING,
}


def describe_model(trial: TrialRecord) -> str:
    """Return backbone with options, and placement of a trial."""
    return f"{record.model_name(trial.config)}, {record.describe_placement(trial.config)}"


def missing_cells(cells: Sequence[str]) -> str:
    """Return a sentence that names the cells of a grid without a result."""
    count = pluralize(len(cells), "trainings")
    return f"{count} of the grid without a result: {'; '.join(cells)}"

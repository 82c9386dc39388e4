"""Schedulers of a fixed list of trials, for confirmations, and of the cells of a grid."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any

from search.config import TrialConfig
from search.record import Role, State, TrialRecord
from search.study import CELLS, read_record
from search.trial_scheduler import Plan, TrialScheduler

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

    from search.grid import Cell
    from search.space import Space


@dataclass(frozen=True, kw_only=True)
class PlannedTrial:
    """Trial that is to be trained.

    Attributes:
        variant: The name of the variant. Trials of one variant differ by the seed.
        params: The parameters, if the configuration was drawn from a space.
    """

    variant: str
    role: Role
    config: TrialConfig
    params: Mapping[str, Any] = field(default_factory=dict)
    distributions: Mapping[str, BaseDistribution] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, int]:
        return self.variant, self.config.seed


class FixedScheduler(TrialScheduler):
    """Scheduler that runs planned trials in order, each once over several runs.

    Attributes:
        planned_trials: May change at any time. A trial that was removed is pruned after its epoch, and
            restarted if it is added again. With `retry`, trials that ended in an error in an earlier run
            restart, too.
    """

    def __init__(
        self,
        study: optuna.Study | Callable[[], optuna.Study],
        plan: Plan,
        planned_trials: Sequence[PlannedTrial],
        *,
        retry: bool = True,
    ) -> None:
        super().__init__(study, plan)
        self.planned_trials = list(planned_trials)
        for trial in [] if callable(study) else study.get_trials(deepcopy=False):
            record = read_record(trial)
            if record is not None:
                self._recover(trial, record)
        errors = {number for number, record in self.records.items() if record.state is State.ERROR}
        self._failed = errors if retry else set()

    @property
    def unfinished(self) -> bool:
        """Return True if trials of an earlier run are to be resumed."""
        return bool(self._unfinished)

    @property
    def trials(self) -> int:
        return max(self.plan.trials or 0, len(self.records) + len(self._waiting()))

    @property
    def left(self) -> int:
        """Return the number of trials to start or resume."""
        return len(self._unfinished) + len(self._waiting())

    def ask(self) -> TrialRecord | None:
        self.waiting = False
        if self.closing:
            return None
        if self._unfinished:
            return self.records[self._unfinished.popleft()]
        remaining = self._waiting()
        if remaining:
            planned = remaining[0]
            return self._add(
                planned.role,
                planned.config,
                variant=planned.variant,
                params=planned.params,
                distributions=planned.distributions,
            )
        self.waiting = bool(self._open)  # more trials may be planned when a running one ends
        return None

    def first(self) -> TrialRecord | None:
        remaining = self._waiting()
        if "study" in vars(self) or not callable(self._opened_by) or not remaining:
            return None
        planned = remaining[0]
        return TrialRecord(0, planned.config, planned.role, variant=planned.variant)

    @property
    def standing(self) -> list[TrialRecord]:
        """Return the trials that count: without pruned ones and without errors of earlier runs."""
        kept = (record for number, record in self.records.items() if number not in self._failed)
        return [record for record in kept if record.state is not State.PRUNED]

    def _waiting(self) -> list[PlannedTrial]:
        started = {_key(record) for record in self.standing}
        return [planned_trial for planned_trial in self.planned_trials if planned_trial.key not in started]

    def _enter(self, record: TrialRecord) -> bool | None:
        return any(planned_trial.key == _key(record) for planned_trial in self.planned_trials)


def _key(record: TrialRecord) -> tuple[str, int]:
    return record.variant, record.config.seed


class GridScheduler(FixedScheduler):
    """Scheduler that trains the cells of a grid, all with one seed before the next seed.

    Trials are never pruned. A cell that cannot be trained (over a limit, diverged) keeps that as its result.
    A trial that ended in an error restarts in the next run. All cells have the same seeds.
    """

    def __init__(
        self, study: optuna.Study, space: Space, plan: Plan, cells: Sequence[Cell], *, seeds: Sequence[int]
    ) -> None:
        self.cells, self.seeds = list(cells), list(seeds)
        planned = [
            PlannedTrial(
                variant=cell.label,
                role=Role.BASELINE if space.as_baseline(cell.config) == cell.config else Role.CANDIDATE,
                config=cell.config.change(seed=seed),
                params=cell.params,
                distributions=cell.distributions,
            )
            for seed in self.seeds
            for cell in self.cells
        ]
        super().__init__(study, plan, planned)
        if CELLS not in study.user_attrs:
            study.set_user_attr(CELLS, {cell.label: dict(cell.params) for cell in self.cells})

    @property
    def repeated_failure(self) -> bool:
        """Return True if the last trials failed for the same reason and no trial has ended otherwise."""
        ended = (record.state for record in self.records.values() if record.state is not State.RUNNING)
        return super().repeated_failure and all(state is State.ERROR for state in ended)

    def _enter(self, record: TrialRecord) -> bool | None:
        return None  # there are no rungs, and running trials finish after the time limit


def find_missing(records: Iterable[TrialRecord], labels: Iterable[str], seeds: Iterable[int]) -> list[str]:
    """Name the cells without a result of a seed, with the reason: not started, not finished, or an error."""
    latest = {(record.variant, record.config.seed): record for record in records}
    missing = []
    for seed, label in product(seeds, labels):
        record = latest.get((label, seed))
        if record is None:
            reason = "not started"
        elif record.state in (State.RUNNING, State.PRUNED):
            reason = "not finished"
        elif record.state is State.ERROR:
            reason = record.reason or "error"
        else:
            continue
        missing.append(f"{label} (seed {seed}): {reason}")
    return missing

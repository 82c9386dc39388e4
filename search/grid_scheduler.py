"""The scheduler of a grid: each cell once for each seed, in order, without pruning."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

import optuna

from search.fixed_scheduler import FixedScheduler, PlannedTrial
from search.grid import Cell
from search.record import Role, State, TrialRecord
from search.space import Space
from search.study import CELLS
from search.trial_scheduler import Plan


@dataclass(frozen=True, kw_only=True)
class MissingCell:
    """Cell that was not trained with one of its seeds, and the reason."""

    label: str
    seed: int
    reason: str

    def __str__(self) -> str:
        return f"{self.label} (seed {self.seed}): {self.reason}"


class GridScheduler(FixedScheduler):
    """Scheduler that trains the cells of a grid, all with one seed before the next seed.

    Trials are never pruned. A cell that cannot be trained (over a limit, diverged) keeps that as its result.
    A trial that ended in an error restarts in the next run. All cells have the same seeds.
    """

    def __init__(
        self,
        study: optuna.Study,
        space: Space,
        plan: Plan,
        cells: Sequence[Cell],
        *,
        seeds: Sequence[int],
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

    @property
    def missing(self) -> list[MissingCell]:
        """Return the planned trials without a result."""
        return find_missing(self.records.values(), [cell.label for cell in self.cells], self.seeds)

    def _enter(self, record: TrialRecord) -> bool | None:
        return None  # there are no rungs, and running trials finish after the time limit


def find_missing(
    records: Iterable[TrialRecord], labels: Iterable[str], seeds: Iterable[int]
) -> list[MissingCell]:
    """Return the cells without a result of a seed: not started, not finished, or ended in an error."""
    latest = {(record.variant, record.config.seed): record for record in records}
    missing = []
    for seed, label in product(seeds, labels):
        record = latest.get((label, seed))
        reason = ""
        if record is None:
            reason = "not started"
        elif record.state in (State.RUNNING, State.PRUNED):
            reason = "not finished"
        elif record.state is State.ERROR:
            reason = record.reason or "error"
        if reason:
            missing.append(MissingCell(label=label, seed=seed, reason=reason))
    return missing

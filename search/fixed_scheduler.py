"""The scheduler of a fixed list of trials, for confirmations and grids."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import optuna
from optuna.distributions import BaseDistribution

from search.config import TrialConfig
from search.record import Role, State, TrialRecord
from search.shared_trainings import SharedTrainings, is_shared_training
from search.study import own_trials, read_record
from search.trial_scheduler import Plan, TrialScheduler


@dataclass(frozen=True, kw_only=True)
class PlannedTrial:
    """A trial to come.

    variant: what it is a repetition of; its configuration has another seed. params, distributions: of a
    space, where the configuration was drawn from one.
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
    """Runs planned trials in their order, each once, whatever has ended earlier runs of it.

    One whose placement goes into a plain training that is among them waits until that has come so far.

    planned_trials: may change at any time; a trial that is no longer among them is pruned after its epoch,
        and begun anew if it is wanted again. One that ended in an error in an earlier run is begun anew, too.
    """

    def __init__(
        self,
        study: optuna.Study,
        plan: Plan,
        planned_trials: Sequence[PlannedTrial],
        *,
        retry: bool = True,
    ) -> None:
        """retry: begin anew what ended in an error."""
        super().__init__(study, plan)
        self._shared_trainings = SharedTrainings(0, self.records)
        self.planned_trials = list(planned_trials)
        for trial in own_trials(study):
            record = read_record(trial)
            if record is not None:
                self._recover(trial, record)
        errors = {number for number, record in self.records.items() if record.state is State.ERROR}
        self._failed = errors if retry else set()

    @property
    def unfinished(self) -> bool:
        """Some trials of an earlier run are still to be resumed."""
        return bool(self._unfinished)

    @property
    def trials(self) -> int:
        return max(self.plan.trials or 0, len(self.records) + len(self._waiting()))

    @property
    def left(self) -> int:
        """How many trials are still to be started or resumed."""
        return len(self._unfinished) + len(self._waiting())

    def ask(self) -> TrialRecord | None:
        self.waiting = False
        if self.closing:
            return None
        if self._unfinished:
            return self.records[self._unfinished.popleft()]
        left = self._waiting()
        coming = {t.config.seed for t in left if is_shared_training(t.config)} | self._shared_trainings.coming
        ready = (t for t in left if is_shared_training(t.config) or t.config.seed not in coming)
        if (chosen := next(ready, None)) is not None:
            return self._add(
                chosen.role,
                chosen.config,
                variant=chosen.variant,
                params=chosen.params,
                distributions=chosen.distributions,
            )
        self.waiting = bool(left or self._open)  # more may be planned when one that runs has ended
        return None

    @property
    def standing(self) -> list[TrialRecord]:
        """The trials that count: not the pruned ones, nor the errors of earlier runs."""
        return [
            record
            for number, record in self.records.items()
            if number not in self._failed and record.state is not State.PRUNED
        ]

    def _waiting(self) -> list[PlannedTrial]:
        begun = {_key(record) for record in self.standing}
        return [planned_trial for planned_trial in self.planned_trials if planned_trial.key not in begun]

    def _enter(self, record: TrialRecord) -> bool | None:
        return any(planned_trial.key == _key(record) for planned_trial in self.planned_trials)


def _key(record: TrialRecord) -> tuple[str, int]:
    return record.variant, record.config.seed

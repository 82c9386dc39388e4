"""Runs the trials of a study: what is stored of them, what they report, and how they end.

It knows Optuna and nothing of Ray: `search.tuner` runs it on a cluster, a benchmark replays it on a table.
Subclasses decide what is tried: a search (`search.search_scheduler`) or a list (`search.fixed_scheduler`).

Ray's own OptunaSearch reports a trial that ASHA has stopped as complete, with the score it had then, so that
the sampler compares epoch 3 with epoch 50. Here such a trial is PRUNED with its intermediate values, one that
could not be trained violates a constraint by as much as was measured, and a crash is FAIL.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from attention import InputError
from search.callback import Callback
from search.config import TrialConfig
from search.halving import Score
from search.journal import batch_writes
from search.metric import Metric
from search.record import (
    Report,
    Role,
    State,
    TrialRecord,
    chosen_options,
    model_name,
    placement_key,
)
from search.study import (
    CONFIG,
    DEVICE,
    EPOCH,
    MODEL,
    PLACEMENT,
    PROFILE,
    PRUNED,
    REASON,
    ROLE,
    TRAINABLE,
    VARIANT,
    add_trial,
    begin_waiting,
    open_trial,
)

# Errors in a row with one and the same reason after which there is nothing to hope for.
REPEATED_FAILURES = 3

RESOURCE = "resource"  # in a record of metrics: what has been spent, in the unit of the budget


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is tried, and how it is judged. Raises InputError for values that no search has.

    trials: how many; None for as many as there is time for.
    budget: the resource of a trial that is not pruned.
    metric: the task's primary metric, one of a record's metrics. Only what it declares is kept.
    objectives: what is searched for: the metric, and costs of which less is better.
    baseline_share: part of the trials that tune the plain backbone.
    guessing: a score of the metric that a model which has learned nothing may come to; None where that has
        no bound.
    """

    trials: int | None
    budget: float
    metric: Metric
    objectives: Sequence[str]
    baseline_share: float = 0.2
    guessing: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "metric", self.metric.declaration)
        if self.trials is not None and self.trials < 0:
            raise InputError(f"trials must be 0 or more; got {self.trials}")
        if not (isfinite(self.budget) and self.budget > 0):
            raise InputError(f"budget must be above 0; got {self.budget}")
        if not self.objectives or len(set(self.objectives)) < len(self.objectives):
            raise InputError(f"objectives must be different metrics, one or more; got {self.objectives}")
        if not 0 <= self.baseline_share <= 1:
            raise InputError(f"baseline_share must lie between 0 and 1; got {self.baseline_share}")

    @property
    def needed(self) -> list[str]:
        """The metrics that each completed trial has."""
        return list(dict.fromkeys((self.metric.name, *self.objectives)))

    def better(self, name: str) -> int:
        """Return 1 if a higher value of an objective is better, and -1 otherwise."""
        return self.metric.sign if name == self.metric.name else -1

    def score(self, trial: TrialRecord) -> Score:
        """Return the objectives after the last epoch, with signs such that larger is better."""
        return [self.better(name) * trial.value(name) for name in self.objectives]

    def guesses(self, trial: TrialRecord) -> bool:
        """Return whether a finished trial may have learned nothing."""
        if self.guessing is None:
            return False
        return self.metric.sign * (trial.value(self.metric.name) - self.guessing) <= 0

    def signed_value(self, trial: TrialRecord, name: str | None = None) -> float:
        """Return the value that ranks a finished trial, larger is better: an objective, by default the first.

        Where a model of placements expects something of it, that: the best score of many is the luckiest's.
        """
        name = name or self.objectives[0]
        value = trial.value(name) if trial.expected is None else trial.expected
        return self.better(name) * value


class TrialScheduler(ABC):
    """The trials of a study, from where the study stands.

    records: every trial so far by its number, those of earlier runs too.
    closing: no new trials, and running ones end at their next rung.
    waiting: `ask` had nothing that can begin before a running trial reports or ends.
    """

    def __init__(self, study: optuna.Study, plan: Plan) -> None:
        self.study, self.plan = study, plan
        self.callbacks: list[Callback] = []
        self.closing = self.waiting = False
        self.records: dict[int, TrialRecord] = {}
        # The open trials, each in the study and in the sampler's study.
        self._open: dict[int, list[tuple[optuna.Study, optuna.Trial]]] = {}
        self._unfinished: deque[int] = deque()
        self._recent: deque[str | None] = deque(maxlen=REPEATED_FAILURES)  # how the last trials failed

    @abstractmethod
    def ask(self) -> TrialRecord | None:
        """Return the next trial, first those that an earlier run left open, or None if there is none."""

    def _enter(self, record: TrialRecord) -> bool | None:
        """Return whether a trial passes the rung of its last report, or None if there is no rung."""
        return True

    def _update_records(self) -> None:  # noqa: B027 (most have nothing to change)
        """Update the records of other trials after the end of one, before callbacks are called."""

    @property
    def trials(self) -> int | None:
        """How many there will be, as far as is known."""
        return self.plan.trials

    @property
    def repeated_failure(self) -> bool:
        """The last trials all failed, for one and the same reason."""
        return (
            len(self._recent) == REPEATED_FAILURES
            and None not in self._recent
            and len(set(self._recent)) == 1
        )

    def _recover(
        self, trial: FrozenTrial, record: TrialRecord, others: Sequence[tuple[optuna.Study, int]] = ()
    ) -> None:
        """Take in a trial of an earlier run. others: its number in other studies that record it."""
        if record.state is State.RUNNING:
            pairs = ((self.study, trial.number), *others)
            self._open[record.number] = [(study, open_trial(study, number)) for study, number in pairs]
            self._unfinished.append(record.number)
        self.records[record.number] = record
        whole, record.history = record.history, []
        for metrics in whole:
            record.history.append(metrics)
            self._enter(record)
        if record.state is State.RUNNING and PRUNED in trial.user_attrs:
            self._unfinished.pop()  # killed between the word and the deed
            self.end(record.number, Report(history=record.history, profile=record.profile))

    def _add(
        self,
        role: Role,
        config: TrialConfig,
        *,
        variant: str = "",
        params: Mapping[str, Any] | None = None,
        distributions: Mapping[str, BaseDistribution] | None = None,
        attributes: Mapping[str, Any] | None = None,
        waiting: FrozenTrial | None = None,
    ) -> TrialRecord:
        """Put a new trial into the study.

        attributes: more of them than those of every trial. waiting: a trial there that becomes this one.
        """
        attributes = {
            **(attributes or {}),
            ROLE: str(role),
            PLACEMENT: placement_key(config),
            MODEL: model_name(config),
            **chosen_options(config),
            CONFIG: config.to_json(),
            **({VARIANT: variant} if variant else {}),
        }
        new = create_trial(
            state=TrialState.RUNNING,
            params=dict(params or {}),
            distributions=dict(distributions or {}),
            user_attrs=attributes,
        )
        trial = add_trial(self.study, new) if waiting is None else begin_waiting(self.study, waiting, new)
        self._open[trial.number] = [(self.study, trial)]
        self.records[trial.number] = TrialRecord(trial.number, config, role, variant=variant)
        return self.records[trial.number]

    def started(self, number: int) -> None:
        """Tell the callbacks that the process of a trial runs."""
        for callback in self.callbacks:
            callback.on_trial_start(self.records[number])

    def report(self, number: int, report: Report) -> bool:
        """Record what is new in a report, and return whether the trial continues."""
        record = self.records[number]
        if number not in self._open:
            return False
        mine = self._open[number][0][1]
        new = report.history[len(record.history) :]
        pending: dict[str, Any] = {}
        if report.profile and not record.profile:
            record.profile, record.device = dict(report.profile), report.device
            pending = {PROFILE: record.profile, **({DEVICE: record.device} if record.device else {})}
        goes_on = not report.is_last
        for metrics in new:
            record.history.append(dict(metrics))
            with batch_writes(self.study):
                while pending:
                    mine.set_user_attr(*pending.popitem())
                mine.set_user_attr(f"{EPOCH}{len(record.history)}", record.history[-1])
                self._tell_value(record)
                decision = self._enter(record)
                if goes_on and (decision is False or (decision is not None and self.closing)):
                    goes_on = False
                    mine.set_user_attr(PRUNED, True)
            for callback in self.callbacks:
                callback.on_epoch_end(record)
        while pending:  # of one that has learned nothing
            mine.set_user_attr(*pending.popitem())
        return goes_on

    def _tell_value(self, record: TrialRecord) -> None:
        """Report a new epoch's score, if it has one; Optuna takes none where there are several objectives."""
        name, last = self.plan.objectives[0], record.history[-1]
        if len(self.plan.objectives) > 1 or not record.has(name):  # the test split has none
            return
        step = int(last[RESOURCE])
        # A trial that is faster than the baseline has several epochs in one of the baseline's.
        if len(record.history) == 1 or step > int(record.history[-2][RESOURCE]):
            for _, trial in self._open[record.number]:
                trial.report(record.value(name), step=step)

    def end(self, number: int, report: Report | None, *, error: str | None = None) -> None:
        """Close a trial, by its last report or by what ended its process."""
        if number not in self._open:
            return
        if report is not None:
            self.report(number, report)
        record = self.records[number]
        state, record.reason = _outcome(report, error)
        constraints: dict[str, float] = {}
        if state is not State.ERROR:
            assert report is not None
            constraints = {TRAINABLE: 0.0, **report.violations}
            if state is State.INFEASIBLE and not any(value > 0 for value in constraints.values()):
                constraints[TRAINABLE] = 1.0
        values = [record.value(name) for name in self.plan.objectives] if state is State.COMPLETE else None
        pairs = self._open.pop(number)
        with batch_writes(self.study):
            if record.reason is not None:
                pairs[0][1].set_user_attr(REASON, record.reason)
            for study, trial in pairs:
                # A search whose writing ended right here has recorded some of it before.
                for key in constraints.keys() - trial.constraints.keys():
                    trial.set_constraint(key, constraints[key])
                study.tell(trial, values, state=_STATES[state])
        record.state = state
        self._update_records()
        record.traceback = report.traceback if report is not None else None
        self._recent.append(record.reason if state is State.ERROR else None)
        for callback in self.callbacks:
            callback.on_trial_end(record)


_STATES = {
    State.COMPLETE: TrialState.COMPLETE,
    State.PRUNED: TrialState.PRUNED,
    State.INFEASIBLE: TrialState.PRUNED,
    State.ERROR: TrialState.FAIL,
}


def _outcome(report: Report | None, error: str | None) -> tuple[State, str | None]:
    if error is None and report is not None:
        error = report.error
    if error is not None or report is None:
        return State.ERROR, error or "the trial's process ended without a report"
    if report.infeasible is not None:
        return State.INFEASIBLE, report.infeasible
    return (State.COMPLETE if report.finished else State.PRUNED), None


def select_leaders(
    records: Iterable[TrialRecord], plan: Plan
) -> tuple[TrialRecord | None, TrialRecord | None]:
    """Return the best finished trial by the first objective, and the best one without attention."""
    done = rank_trials(records, plan)
    plain = [record for record in done if record.role is Role.BASELINE]
    return next(iter(done), None), next(iter(plain), None)


def rank_trials(records: Iterable[TrialRecord], plan: Plan) -> list[TrialRecord]:
    """Return the finished trials, the best by the first objective first.

    What may have learned nothing leads where all the others have not, either. Replicates are not among them.
    """

    def score(record: TrialRecord) -> tuple[bool, float]:
        return not plan.guesses(record), plan.signed_value(record)

    done = [r for r in records if r.state is State.COMPLETE and r.role is not Role.REPLICATE]
    return sorted(done, key=score, reverse=True)

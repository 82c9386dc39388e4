"""Base class of schedulers: the state of trials in the study, their reports and ends, and the time left.

It depends on Optuna but not on Ray: `search.tuner` runs it on a cluster, and a benchmark replays it on a
table. Subclasses choose the trials: a search (`search.search_scheduler`) or a list
(`search.fixed_scheduler`).

A trial that is stopped early is PRUNED with its intermediate values, so that the sampler does not compare
epoch 3 with epoch 50. One that cannot be trained violates a constraint by the measured amount.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heapreplace
from itertools import pairwise
from math import inf, isfinite
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar

from automl.base.errors import InputError
from automl.base.lazy import later
from search.config import TrialConfig
from search.halving import REDUCTION, ROUNDING, Rungs
from search.metric import Metric
from search.record import Callback, Report, Role, State, TrialRecord
from search.study import (
    DEVICE,
    EPOCH,
    PROFILE,
    PRUNED,
    REASON,
    TRAINABLE,
    add_trial,
    batch_writes,
    begin_waiting,
    open_trial,
    trial_attributes,
)

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial
else:
    optuna = later("optuna")

# Number of consecutive errors with the same reason after which the run ends.
REPEATED_FAILURES = 3

RESOURCE = "resource"  # key in a record of metrics: the resource used so far, in the unit of the budget


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Number of trials, their budget, and how they are ranked.

    Attributes:
        trials: The number of trials, or None for no limit.
        budget: The resource of a trial that is not pruned.
        metric: The task's primary metric. Only its declaration is kept.
        baseline_share: The fraction of trials that tune the baseline.
        pruning: True if weak trials are stopped at rungs.
        guessing: A score that a model without learning may reach, or None if there is no such bound.
        reports: The number of reports of a trial per epoch. Rungs are multiples of this fraction of an epoch.
    """

    trials: int | None
    budget: float
    metric: Metric
    baseline_share: float = 0.2
    pruning: bool = True
    guessing: float | None = None
    reports: int = 1

    REMOVED: ClassVar = {"objectives": ...}

    def __post_init__(self) -> None:
        object.__setattr__(self, "metric", self.metric.declaration)
        if self.trials is not None and self.trials < 0:
            raise InputError(f"trials must be 0 or more; got {self.trials}")
        if not (isfinite(self.budget) and self.budget > 0):
            raise InputError(f"budget must be above 0; got {self.budget}")
        if not 0 <= self.baseline_share <= 1:
            raise InputError(f"baseline_share must lie between 0 and 1; got {self.baseline_share}")

    def rungs(self) -> Rungs:
        """Return the rungs of a new search. There are none without pruning."""
        return Rungs(self.budget if self.pruning else 0, self.reports)

    @property
    def needed(self) -> list[str]:
        """Return the metrics that each completed trial must have."""
        return [self.metric.name]

    def score(self, trial: TrialRecord) -> float:
        """Return the metric after the last epoch, with the sign such that larger is better."""
        return self.metric.sign * trial.value(self.metric.name)

    def guesses(self, trial: TrialRecord) -> bool:
        """Return True if a finished trial may have learned nothing."""
        if self.guessing is None:
            return False
        return self.metric.sign * (trial.value(self.metric.name) - self.guessing) <= 0

    def signed_value(self, trial: TrialRecord) -> float:
        """Return the value that ranks a finished trial, larger is better.

        If a model of placements predicts the trial, the prediction is used, since the best of many scores is
        partly luck.
        """
        return self.score(trial) if trial.expected is None else self.metric.sign * trial.expected


class TrialScheduler(ABC):
    """Base class of schedulers of the trials of a study.

    Attributes:
        records: All trials by number, including those of earlier runs.
        closing: If True, no trials start, and running ones end at their next rung.
        waiting: True if `ask` returned None, but a trial may start when a running one reports or ends.
    """

    def __init__(self, study: optuna.Study | Callable[[], optuna.Study], plan: Plan) -> None:
        self._opened_by, self.plan = study, plan
        self.callbacks: list[Callback] = []
        self.closing = self.waiting = False
        self.records: dict[int, TrialRecord] = {}
        # Open trials, each in the study and in the sampler's study.
        self._open: dict[int, list[tuple[optuna.Study, optuna.Trial]]] = {}
        self._unfinished: deque[int] = deque()
        # Errors of the last trials, None for other ends.
        self._recent: deque[str | None] = deque(maxlen=REPEATED_FAILURES)

    @cached_property
    def study(self) -> optuna.Study:
        """The study. A function that creates it is called when the first trial is added."""
        return self._opened_by() if callable(self._opened_by) else self._opened_by

    @abstractmethod
    def ask(self) -> TrialRecord | None:
        """Return the next trial, first those that an earlier run left open, or None."""

    def first(self) -> TrialRecord | None:
        """Return the trial that `ask` will add first, if it is known before the study is open."""
        return None

    def _enter(self, record: TrialRecord) -> bool | None:
        """Return whether a trial passes the rung of its last report, or None if there is no rung."""
        return True

    def _update_records(self) -> None:  # noqa: B027 (optional)
        """Update the records of other trials after the end of a trial, before callbacks are called."""

    @property
    def trials(self) -> int | None:
        """Return the number of trials, or None if it is unknown."""
        return self.plan.trials

    @property
    def repeated_failure(self) -> bool:
        """Return True if the last trials all failed for the same reason."""
        reasons = set(self._recent)
        return len(self._recent) == REPEATED_FAILURES and len(reasons) == 1 and None not in reasons

    def _recover(
        self, trial: FrozenTrial, record: TrialRecord, others: Sequence[tuple[optuna.Study, int]] = ()
    ) -> None:
        """Restore a trial of an earlier run. `others` holds other studies with it, and its number there."""
        if record.state is State.RUNNING:
            pairs = ((self.study, trial.number), *others)
            self._open[record.number] = [(study, open_trial(study, number)) for study, number in pairs]
            self._unfinished.append(record.number)
        self.records[record.number] = record
        history, record.history = record.history, []
        for metrics in history:
            record.history.append(metrics)
            self._enter(record)
        if record.state is State.RUNNING and PRUNED in trial.user_attrs:
            self._unfinished.pop()  # killed after the trial was marked pruned but before it was closed
            self.end(record.number, Report(history=record.history, profile=record.profile))

    def _add(
        self,
        role: Role,
        config: TrialConfig,
        *,
        variant: str = "",
        params: Mapping[str, Any] | None = None,
        distributions: Mapping[str, BaseDistribution] | None = None,
        waiting: FrozenTrial | None = None,
    ) -> TrialRecord:
        """Add a trial to the study, in place of the enqueued trial `waiting`."""
        new = optuna.trial.create_trial(
            state=optuna.trial.TrialState.RUNNING,
            params=dict(params or {}),
            distributions=dict(distributions or {}),
            user_attrs=trial_attributes(role, config, variant),
        )
        trial = add_trial(self.study, new) if waiting is None else begin_waiting(self.study, waiting, new)
        self._open[trial.number] = [(self.study, trial)]
        self.records[trial.number] = TrialRecord(
            trial.number, config, role, params=dict(new.params), variant=variant
        )
        return self.records[trial.number]

    def started(self, number: int) -> None:
        """Call the callbacks: the process of a trial has started."""
        for callback in self.callbacks:
            callback.on_trial_start(self.records[number])

    def report(self, number: int, report: Report) -> bool:
        """Record what is new in a report. Return True if the trial continues."""
        record = self.records[number]
        if number not in self._open:
            return False
        trial = self._open[number][0][1]
        new = report.history[len(record.history) :]
        pending: dict[str, Any] = {}
        if report.profile and not record.profile:
            record.profile, record.device = dict(report.profile), report.device
            pending = {PROFILE: record.profile, **({DEVICE: record.device} if record.device else {})}
        continues = not report.is_last
        for metrics in new:
            record.history.append(dict(metrics))
            with batch_writes(self.study):
                while pending:
                    trial.set_user_attr(*pending.popitem())
                trial.set_user_attr(f"{EPOCH}{len(record.history)}", record.history[-1])
                self._report_value(record)
                decision = self._enter(record)
                if continues and (decision is False or (decision is not None and self.closing)):
                    continues = False
                    trial.set_user_attr(PRUNED, True)
            for callback in self.callbacks:
                callback.on_epoch_end(record)
        while pending:  # the trial ended before its first epoch
            trial.set_user_attr(*pending.popitem())
        return continues

    def _report_value(self, record: TrialRecord) -> None:
        """Report the score of a new epoch to Optuna. Trainings on the test split have none."""
        name = self.plan.metric.name
        if not record.has(name):
            return
        steps = [int(m[RESOURCE] * self.plan.reports + ROUNDING) for m in record.history[-2:]]
        # A trial that is faster than the baseline has several reports in one of the baseline's.
        if len(steps) == 1 or steps[1] > steps[0]:
            for _, trial in self._open[record.number]:
                trial.report(record.value(name), step=steps[-1])

    def end(self, number: int, report: Report | None, *, error: str | None = None) -> None:
        """Close a trial, by its last report or by the error that ended its process."""
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
        value = record.value(self.plan.metric.name) if state is State.COMPLETE else None
        trials = self._open.pop(number)
        with batch_writes(self.study):
            if record.reason is not None:
                trials[0][1].set_user_attr(REASON, record.reason)
            for study, trial in trials:
                # An earlier run that failed to write may have recorded some of the constraints.
                for key in constraints.keys() - trial.constraints.keys():
                    trial.set_constraint(key, constraints[key])
                study.tell(trial, value, state=optuna.trial.TrialState[_STATES[state]])
        record.state = state
        self._update_records()
        record.traceback = report.traceback if report is not None else None
        self._recent.append(record.reason if state is State.ERROR else None)
        for callback in self.callbacks:
            callback.on_trial_end(record)


_STATES = {
    State.COMPLETE: "COMPLETE",
    State.PRUNED: "PRUNED",
    State.INFEASIBLE: "PRUNED",
    State.ERROR: "FAIL",
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
    """Return the best finished trial, and the best baseline."""
    finished = rank_trials(records, plan)
    baselines = [record for record in finished if record.role is Role.BASELINE]
    return next(iter(finished), None), next(iter(baselines), None)


def rank_trials(records: Iterable[TrialRecord], plan: Plan) -> list[TrialRecord]:
    """Return the finished trials, the best first, those that may guess last."""

    def score(record: TrialRecord) -> tuple[bool, float]:
        return not plan.guesses(record), plan.signed_value(record)

    finished = [r for r in records if r.state is State.COMPLETE]
    return sorted(finished, key=score, reverse=True)


LEAST = 2  # number of trials that must have trained to their end before there is an estimate
WEIGHT = 10  # number of trials that the plan's mean resource counts as, beside those that ran


def expected_resource(plan: Plan, reached: float = 0.0, trials: float = inf) -> float:
    """Return the mean resource that one of `trials` uses from `reached` on.

    At each rung the best third of those that have come so far continues, and so does the first one.
    """
    marks = [reached, *(mark for mark in plan.rungs().milestones if mark > reached + ROUNDING)]
    marks.append(max(marks[-1], plan.budget))
    total, fraction = 0.0, 1.0
    for start, end in pairwise(marks):
        total += fraction * (end - start)
        fraction = min(fraction, (fraction + 1 / trials) / REDUCTION)
    return total


def estimate_left(
    plan: Plan,
    records: Collection[TrialRecord],
    *,
    trials: int,
    slots: int,
    overhead: float = 0.0,
    elapsed: Mapping[int, float] | None = None,
) -> float | None:
    """Estimate the time until `trials` have ended [s]. Return None if too few have trained to their end.

    Args:
        plan: The plan of the search. Where it prunes, most trials end at a rung.
        records: The ended and the running trials.
        trials: The number of trials, with those that have not begun.
        slots: The number of trials at once.
        overhead: The time of a trial besides that of its epochs [s].
        elapsed: The time since the start or the last epoch of each running trial, by number [s].
    """
    running = [record for record in records if record.state is State.RUNNING]
    done = [record for record in records if record.state is not State.RUNNING]
    trained = [record for record in done if record.resource]
    if len(trained) < LEAST:
        return None
    seconds = sum(metrics.get("seconds", 0.0) for record in records for metrics in record.history)
    pace = seconds / sum(record.resource for record in records)
    rests = {record.number: expected_resource(plan, record.resource, trials) for record in running}
    trains = [*trained, *(record for record in running if record.resource)]
    resources = [record.resource + rests.get(record.number, 0.0) for record in trains]
    mean = fmean([*resources, *[expected_resource(plan, trials=trials)] * WEIGHT])
    failed = len(done) - len(trained)
    each = overhead + pace * mean * len(trains) / (len(trains) + failed)
    # Each slot is busy until its trial ends, and takes the next trial then.
    busy = [
        max(0.0, pace * rests[r.number] + (0.0 if r.history else overhead) - (elapsed or {}).get(r.number, 0))
        for r in running
    ]
    busy += [0.0] * (slots - len(busy))
    whole, rest = divmod(max(0, trials - len(done) - len(running)), len(busy))
    heapify(busy)
    for _ in range(rest):
        heapreplace(busy, busy[0] + each)
    return max(busy) + whole * each

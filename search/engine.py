"""What a search decides: what is tried next, what is cut, and what the sampler is told of each trial.

It knows Optuna and nothing of Ray: `search.tuner` runs it on a cluster, a benchmark replays it on a table.

Ray's own OptunaSearch tells a trial that ASHA cut as complete, with the score it had then, and the
sampler then compares epoch 3 with epoch 50. Here a cut trial is PRUNED with its intermediate values,
one that could not be trained violates a constraint by as much as was measured, and a crash is FAIL.
"""

import json
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.samplers import BaseSampler, RandomSampler
from optuna.trial import TrialState, create_trial

from attention import InputError
from search.config import TrialConfig
from search.halving import Rungs, Score
from search.record import Listener, Report, Role, State, TrialRecord
from search.samplers import Grid
from search.spaces import Space
from search.study import (
    CONFIG,
    CUT,
    FACTS,
    HISTORY,
    LIKE,
    REASON,
    ROLE,
    TRAINABLE,
    drawing_study,
    read_record,
)

# Errors in a row with one and the same reason after which a search has nothing to find.
HOPELESS = 3

# Draws in a row that a space may refuse; that are forgone as repetitions, and twice as many for a forecast.
REFUSED, REDRAWS = 1000, 20

# Trials that exceed the limits before a search is given up of which no other one has ended.
BARREN = 10

RESOURCE = "resource"  # in a record of metrics: what has been spent, in the unit of the budget


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is tried, and how it is judged.

    trials: how many; None for as many as there is time for.
    budget: the resource of a trial that is not cut.
    metric: the task's primary metric, one of a record's metrics. maximize: whether more of it is better.
    objectives: what is searched for: the metric, and facts of which less is better.
    baseline_share: part of the trials that tune the plain backbone.
    """

    trials: int | None
    budget: float
    metric: str
    maximize: bool
    objectives: Sequence[str]
    baseline_share: float = 0.2

    def better(self, name: str) -> int:
        """1 where more of an objective is better, -1 where less is."""
        return 1 if name == self.metric and self.maximize else -1

    def score(self, trial: TrialRecord) -> Score:
        """The objectives at the trial's last epoch, each the larger the better."""
        return [self.better(name) * trial.value(name) for name in self.objectives]


class Engine:
    """A search over an Optuna study, from where the study stands.

    Configurations are drawn on a study in memory, which the sampler leads and which knows everything that the
    search's own study does; a draw that will not be tried stays there. The search's own gets whole trials,
    each in one write, so that whatever kills the search leaves none half-drawn.

    records: every trial so far by its number, those of earlier runs of the search too.
    adjust: applied to every configuration the space draws, for what the command line overrides.
    forecast: by how much a configuration would violate each limit, as far as that is known before it is
        tried; one that would is told to the sampler and drawn anew.
    closing: no new trials, and running ones end at their next rung.
    """

    def __init__(
        self,
        study: optuna.Study,
        space: Space,
        plan: Plan,
        sampler: BaseSampler,
        *,
        adjust: Callable[[TrialConfig], TrialConfig] = lambda config: config,
        forecast: Callable[[TrialConfig], Mapping[str, float]] = lambda config: {},
        listeners: Sequence[Listener] = (),
    ) -> None:
        self.study, self.space, self.plan = study, space, plan
        self.adjust, self.forecast = adjust, forecast
        self.listeners = list(listeners)
        self.closing = False
        # What is tried after the baseline, in this order.
        self._given: list[tuple[Role, Mapping[str, Any]]] = [
            *((Role.CANDIDATE, params) for params in study.user_attrs.get(LIKE, [])),
            *((Role.PUBLISHED, params) for params in space.published()),
        ]
        self.rungs = Rungs(plan.budget)
        self.records: dict[int, TrialRecord] = {}
        self._sampler, self._chance = sampler, RandomSampler(len(study.get_trials(deepcopy=False)))
        self._drawn = drawing_study(study, sampler)
        # The open trials, each in the search's study and in the one in memory.
        self._open: dict[int, list[tuple[optuna.Study, optuna.Trial]]] = {}
        self._unfinished: deque[int] = deque()
        self._seen: Counter[str] = Counter()  # how often each configuration was drawn
        self._tuned = True  # the plain backbone still has something to tune
        self._recent: deque[str | None] = deque(maxlen=HOPELESS)  # how the last trials failed
        self._read()

    def _read(self) -> None:
        for trial in self.study.get_trials(deepcopy=False):
            twin = len(self._drawn.get_trials(deepcopy=False))
            self._drawn.add_trial(trial)
            record = read_record(trial)
            if record is None:  # not of ours
                continue
            self._seen[_key(record.config)] += 1
            if LIKE in trial.user_attrs:
                continue
            if record.state is State.RUNNING:
                pairs = ((self.study, trial.number), (self._drawn, twin))
                self._open[record.number] = [(study, _reopen(study, number)) for study, number in pairs]
                self._unfinished.append(record.number)
            self.records[record.number] = record
            whole, record.history = record.history, []
            for metrics in whole:
                record.history.append(metrics)
                self._enter(record)
            if record.state is State.RUNNING and CUT in trial.user_attrs:
                self._unfinished.pop()  # killed between the word and the deed
                self.end(record.number, Report(history=record.history, facts=record.facts))

    @property
    def hopeless(self) -> bool:
        """The last trials all failed, for one and the same reason."""
        return len(self._recent) == HOPELESS and None not in self._recent and len(set(self._recent)) == 1

    @property
    def barren(self) -> str | None:
        """Why the limits leave nothing to find, once the first trials have all exceeded them."""
        records = [record for record in self.records.values() if record.state is not State.RUNNING]
        enough = min(BARREN, self.plan.trials or BARREN)
        if len(records) < enough or any(record.state is not State.INFEASIBLE for record in records):
            return None
        return f"none of the first {len(records)} trials could be trained; the last one: {records[-1].reason}"

    def ask(self) -> TrialRecord | None:
        """The next trial, first those that an earlier run left open; None when there is none.

        Raises InputError for what a person's own space does wrong.
        """
        if self.closing or self.barren:
            return None
        if self._unfinished:
            return self.records[self._unfinished.popleft()]
        if self.plan.trials is not None and len(self.records) >= self.plan.trials:
            return None
        for attempt in range(REFUSED):
            # Of what is given and refused, another draw takes the place.
            role, fixed = (Role.CANDIDATE, None) if attempt else self._next()
            if fixed is not None:
                self._drawn.enqueue_trial(dict(fixed))
            # A sampler that draws one place again and again is helped on by chance.
            self._drawn.sampler = self._sampler if attempt < REDRAWS // 2 else self._chance
            trial = self._drawn.ask()
            try:
                config = self.adjust(self.space(trial))
            except optuna.TrialPruned:
                self._reject(trial, {"space": 1.0})
                continue
            if fixed is None and self._seen[_key(config)] and attempt < REDRAWS:
                self._drawn.tell(trial, state=TrialState.FAIL)  # nothing is to be learned from it
                if isinstance(self._sampler, Grid):
                    return None  # which repeats itself when there is nothing left
                continue
            violations = self.forecast(config)
            # What is given is tried and measured, whatever the forecast; and so is what is drawn, in the end.
            if fixed is None and attempt < 2 * REDRAWS and any(part > 0 for part in violations.values()):
                self._reject(trial, violations)
                continue
            return self._create(trial, role, config)
        raise InputError(
            f"space {self.space.name!r} refused {REFUSED} draws in a row (TrialPruned); it must draw what it "
            f"takes"
        )

    def _next(self) -> tuple[Role, Mapping[str, Any] | None]:
        """The role of the next trial and the parameters it is given."""
        number, space = len(self.records), self.space
        if number == 0:
            return Role.BASELINE, space.baseline
        if number <= len(self._given):
            return self._given[number - 1]
        baselines = sum(record.role is Role.BASELINE for record in self.records.values())
        if self._tuned and baselines < self.plan.baseline_share * (number + 1):
            return Role.BASELINE, space.plain
        return Role.CANDIDATE, None

    def _reject(self, trial: optuna.Trial, violations: Mapping[str, float]) -> None:
        for key, value in violations.items():
            trial.set_constraint(key, value)
        self._drawn.tell(trial, state=TrialState.PRUNED)

    def _create(self, trial: optuna.Trial, role: Role, config: TrialConfig) -> TrialRecord:
        """Put what was drawn into the search's study."""
        # What comes again all the same tells more with another seed than a second time with the same one.
        key = _key(config)
        again = self._seen[key]
        self._seen[key] += 1
        config = config.change(seed=(config.seed + again) % 2**32)
        if not config.model.placement:
            self._tuned &= role is not Role.BASELINE or not again
            role = Role.BASELINE  # whoever chose it
        elif role is Role.BASELINE:
            role = Role.CANDIDATE  # the space pays no heed to what was given
        self.study.add_trial(
            create_trial(
                state=TrialState.RUNNING,
                params=trial.params,
                distributions=trial.distributions,
                user_attrs={ROLE: str(role), CONFIG: config.to_json()},
            )
        )
        number = len(self.study.get_trials(deepcopy=False)) - 1
        self._open[number] = [(self.study, _reopen(self.study, number)), (self._drawn, trial)]
        self.records[number] = TrialRecord(number, config, role)
        return self.records[number]

    def started(self, number: int) -> None:
        """The trial's process runs."""
        for listener in self.listeners:
            listener.started(self.records[number])

    def report(self, number: int, report: Report) -> bool:
        """Take in what is new in a report, and say whether the trial goes on."""
        record = self.records[number]
        if number not in self._open:
            return False
        mine = self._open[number][0][1]
        new = report.history[len(record.history) :]
        if report.facts and not record.facts:
            record.facts = dict(report.facts)
            mine.set_user_attr(FACTS, record.facts)
        goes_on = not report.last
        if new:
            mine.set_user_attr(HISTORY, list(report.history))
        for metrics in new:
            record.history.append(dict(metrics))
            if len(self.plan.objectives) == 1:  # Optuna takes no intermediate values of several
                name = self.plan.objectives[0]
                step = int(metrics[RESOURCE])
                # A trial that is faster than the baseline has several epochs in one of the baseline's.
                if len(record.history) == 1 or step > int(record.history[-2][RESOURCE]):
                    for _, trial in self._open[number]:
                        trial.report(record.value(name), step=step)
            decision = self._enter(record)
            if goes_on and (decision is False or (decision is not None and self.closing)):
                goes_on = False
                mine.set_user_attr(CUT, True)
            for listener in self.listeners:
                listener.reported(record)
        return goes_on

    def _enter(self, record: TrialRecord) -> bool | None:
        group = str(Role.BASELINE if record.role is Role.BASELINE else Role.CANDIDATE)
        return self.rungs.enter(record.number, group, record.history[-1][RESOURCE], self.plan.score(record))

    def end(self, number: int, report: Report | None, *, error: str | None = None) -> None:
        """Close a trial, by its last report or by what ended its process."""
        if number not in self._open:
            return
        if report is not None:
            self.report(number, report)
        record = self.records[number]
        state, record.reason = _outcome(report, error)
        if record.reason is not None:
            self._open[number][0][1].set_user_attr(REASON, record.reason)
        constraints: dict[str, float] = {}
        if state is not State.ERROR:
            assert report is not None
            constraints = {TRAINABLE: 0.0, **report.violations}
            if state is State.INFEASIBLE and not any(value > 0 for value in constraints.values()):
                constraints[TRAINABLE] = 1.0
        for study, trial in self._open.pop(number):
            # A search that was killed right here has told some of it before.
            told = study.get_trials(deepcopy=False)[trial.number].constraints
            for key in constraints.keys() - told.keys():
                trial.set_constraint(key, constraints[key])
            if state is State.COMPLETE:
                study.tell(trial, [record.value(name) for name in self.plan.objectives])
            else:
                study.tell(trial, state=TrialState.FAIL if state is State.ERROR else TrialState.PRUNED)
        record.state = state
        record.traceback = report.traceback if report is not None else None
        self._recent.append(record.reason if state is State.ERROR else None)
        for listener in self.listeners:
            listener.ended(record)


def _reopen(study: optuna.Study, number: int) -> optuna.Trial:
    """A running trial of a study."""
    return optuna.Trial(study, study.get_trials(deepcopy=False)[number]._trial_id)


def _outcome(report: Report | None, error: str | None) -> tuple[State, str | None]:
    if error is None and report is not None:
        error = report.error
    if error is not None or report is None:
        return State.ERROR, error or "the trial's process ended without a word"
    if report.infeasible is not None:
        return State.INFEASIBLE, report.infeasible
    return (State.COMPLETE if report.finished else State.PRUNED), None


def _key(config: TrialConfig) -> str:
    """The same for configurations that differ in nothing but the seed."""
    return json.dumps(config.change(seed=0).to_json(), sort_keys=True)


def leaders(records: Iterable[TrialRecord], plan: Plan) -> tuple[TrialRecord | None, TrialRecord | None]:
    """The best of the finished trials by the plan's first objective, and the best without attention."""
    done = sorted(
        (record for record in records if record.state is State.COMPLETE),
        key=lambda record: plan.score(record)[0],
        reverse=True,
    )
    plain = [record for record in done if record.role is Role.BASELINE]
    return next(iter(done), None), next(iter(plain), None)

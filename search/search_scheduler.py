"""The scheduler of a search: chooses the next trial and prunes trials."""

import json
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any

import optuna
from optuna.samplers import BaseSampler, RandomSampler
from optuna.trial import FrozenTrial, TrialState

from automl.base.errors import InputError
from automl.base.units import pluralize
from search.config import TrialConfig
from search.placement_effects import read_prior, write_prior
from search.placement_sampler import GrowingModel, PlacementSampler
from search.record import Role, State, TrialRecord
from search.space import Space, memory_study
from search.study import ENQUEUED, EXPECTED, WARM_START, read_record, update_expected
from search.trial_scheduler import RESOURCE, Plan, TrialScheduler

# Largest number of consecutive draws: that a space may reject, and that are discarded as repetitions (twice
# as many for a forecast).
REFUSED, REDRAWS = 1000, 20
# Number of trials over the limits, without any other end, after which the search stops.
ALL_INFEASIBLE = 10


class SearchScheduler(TrialScheduler):
    """Scheduler of a search over an Optuna study, resumed from the study's state.

    Configurations are drawn on a study in memory, which has the sampler and a copy of all trials. Discarded
    draws stay there. The search's own study gets complete trials, each in one write, so a kill leaves no
    half-drawn trial.

    Attributes:
        forecast: Returns by how much a configuration would violate each limit, as far as it is known before
            training. A violating draw is passed to the sampler as infeasible, and another one is drawn.
    """

    def __init__(
        self,
        study: optuna.Study,
        space: Space,
        plan: Plan,
        sampler: BaseSampler,
        *,
        forecast: Callable[[TrialConfig], Mapping[str, float]] = lambda config: {},
    ) -> None:
        super().__init__(study, plan)
        self.space, self.forecast = space, forecast
        # Fixed parameters of the trials after the baseline, in this order.
        warm, free = study.user_attrs.get(WARM_START, []), space.free()
        self._fixed = [*((Role.CANDIDATE, known) for known in warm), *((Role.FREE, known) for known in free)]
        self.rungs = plan.rungs()
        self._sampler, self._chance = sampler, RandomSampler(len(study.get_trials(deepcopy=False)))
        self._drawn = memory_study(sampler, study.direction)
        write_prior(self._drawn, read_prior(study))
        self._seen: Counter[str] = Counter()  # number of draws of each configuration
        # Trials that the user enqueued with `enqueue_trial`, and the number of those that were tried.
        self._waiting: deque[FrozenTrial] = deque()
        self._enqueued = 0
        self._baselines = 0  # number of trials that are baselines
        self._tuned = True  # False once a baseline draw repeats
        # The best of many scores is found by a model of placements.
        self._models = isinstance(sampler, PlacementSampler)
        self._model = GrowingModel()
        if self._models and not study.user_attrs.get(EXPECTED):
            study.set_user_attr(EXPECTED, True)
        self._read()
        self._update_records()

    def _read(self) -> None:
        for trial in self.study.get_trials(deepcopy=False):
            if trial.state is TrialState.WAITING:
                self._waiting.append(trial)
                continue
            drawn_number = len(self._drawn.get_trials(deepcopy=False))
            self._drawn.add_trial(trial)
            record = read_record(trial)
            if record is None:  # another program created it
                continue
            self._seen[_key(record.config)] += 1
            self._enqueued += ENQUEUED in trial.system_attrs
            self._baselines += record.role is Role.BASELINE
            self._recover(trial, record, [(self._drawn, drawn_number)])

    @property
    def all_infeasible(self) -> str | None:
        """Return the reason to stop if the first trials have all exceeded the limits."""
        hopeful = (State.COMPLETE, State.PRUNED, State.ERROR)
        if any(record.state in hopeful for record in self.records.values()):
            return None
        records = [record for record in self.records.values() if record.state is State.INFEASIBLE]
        if len(records) < min(ALL_INFEASIBLE, self.plan.trials or ALL_INFEASIBLE):
            return None
        tried = pluralize(len(records), "trials")
        return f"none of the first {tried} could be trained; the last one: {records[-1].reason}"

    def ask(self) -> TrialRecord | None:
        """Return the next trial, unfinished ones first, or None. Raises InputError of a user's space."""
        self.waiting = False
        if self.closing or self.all_infeasible:
            return None
        if self._unfinished:
            return self.records[self._unfinished.popleft()]
        is_full = self.plan.trials is not None and len(self.records) >= self.plan.trials
        if is_full:
            return None
        enqueued = self._takes_enqueued
        for attempt in range(REFUSED):
            # If the space rejects the fixed parameters, sample instead.
            role, fixed = (Role.CANDIDATE, None) if attempt else self._next()
            if params := self.space.candidate if fixed is None else fixed:
                self._drawn.enqueue_trial(dict(params))
            # A sampler that keeps drawing the same point is replaced by random draws.
            self._drawn.sampler = self._sampler if attempt < REDRAWS // 2 else self._chance
            trial = self._drawn.ask()
            try:
                config = self.space(trial)
            except optuna.TrialPruned:
                self._reject(trial, {"space": 1.0})
                continue
            # Fixed parameters that repeat get another seed.
            if fixed is None and attempt < REDRAWS and self._repeats(config):
                self._drawn.tell(trial, state=TrialState.FAIL)  # the sampler learns nothing from it
                continue
            violations = self.forecast(config)
            # Fixed parameters are tried whatever the forecast, and so are draws after many attempts.
            if fixed is None and attempt < 2 * REDRAWS and any(excess > 0 for excess in violations.values()):
                self._reject(trial, violations)
                continue
            return self._create(trial, role, config, self._waiting.popleft() if enqueued else None)
        raise InputError(
            f"space {self.space.name!r} rejected {REFUSED} draws in a row (TrialPruned); narrow its choices "
            f"to those it accepts"
        )

    @property
    def _takes_enqueued(self) -> bool:
        """Return True if an enqueued trial is next, after the baseline."""
        return bool(self._waiting and self.records)

    def _next(self) -> tuple[Role, Mapping[str, Any] | None]:
        """Return the role of the next trial and its fixed parameters."""
        number, space = len(self.records), self.space
        if number == 0:
            return Role.BASELINE, space.baseline
        if self._takes_enqueued:
            return Role.CANDIDATE, self._waiting[0].system_attrs.get(ENQUEUED, {})
        number -= self._enqueued
        if number <= len(self._fixed):
            return self._fixed[number - 1]
        if self._tuned and self._baselines < self.plan.baseline_share * (number + 1):
            return Role.BASELINE, space.plain
        return Role.CANDIDATE, None

    def _repeats(self, config: TrialConfig) -> bool:
        """Return True if a trial of this configuration would bring nothing new."""
        # `PlacementSampler` repeats placements on purpose, as a second seed shows whether a score was luck.
        return self._seen[_key(config)] > 0 and not isinstance(self._sampler, PlacementSampler)

    def _reject(self, trial: optuna.Trial, violations: Mapping[str, float]) -> None:
        for key, value in violations.items():
            trial.set_constraint(key, value)
        self._drawn.tell(trial, state=TrialState.PRUNED)

    def _create(
        self, trial: optuna.Trial, role: Role, config: TrialConfig, waiting: FrozenTrial | None
    ) -> TrialRecord:
        """Add a drawn trial to the search's study, in place of the enqueued trial `waiting`, if any."""
        # A repetition is more informative with another seed.
        key = _key(config)
        repetitions = self._seen[key]
        self._seen[key] += 1
        config = config.change(seed=(config.seed + repetitions) % 2**32)
        if self.space.as_baseline(config) == config:
            self._tuned &= role is not Role.BASELINE or not repetitions
            role = Role.BASELINE  # also if the sampler drew it
        elif role is Role.BASELINE:
            role = Role.CANDIDATE  # the space ignores the fixed parameters
        record = self._add(
            role, config, params=trial.params, distributions=trial.distributions, waiting=waiting
        )
        self._enqueued += waiting is not None
        self._baselines += role is Role.BASELINE
        self._open[record.number].append((self._drawn, trial))
        return record

    def _update_records(self) -> None:
        if self._models:
            update_expected(self.study, self.records, self._model)

    def _enter(self, record: TrialRecord) -> bool | None:
        group = str(Role.BASELINE if record.role is Role.BASELINE else Role.CANDIDATE)
        return self.rungs.enter(record.number, group, record.history[-1][RESOURCE], self.plan.score(record))


def _key(config: TrialConfig) -> str:
    """Return a key that is equal for configurations that differ only in the seed."""
    return json.dumps(config.change(seed=0).to_json(), sort_keys=True)

"""The scheduler of a search: what is tried next and what is pruned."""

import json
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any

import optuna
from optuna.samplers import BaseSampler, RandomSampler
from optuna.trial import FrozenTrial, TrialState

from attention import InputError
from search.choices import parse_parameter
from search.config import TrialConfig
from search.halving import Rungs
from search.memory_study import memory_study
from search.placement_posterior import estimate_posterior
from search.placement_sampler import SHARED_TRAINING, GrowingModel, PlacementSampler
from search.record import Role, State, TrialRecord
from search.shared_trainings import PERTURB, SharedTrainings, is_shared_training
from search.space import Space
from search.study import ENQUEUED, EXPECTED, PLACEMENT_VERDICT, WARM_START, read_record, update_expected
from search.trial_scheduler import RESOURCE, Plan, TrialScheduler

# Draws in a row that a space may refuse; that are forgone as repetitions, and twice as many for a forecast.
REFUSED, REDRAWS = 1000, 20
# Finished trials with a placement before which the race between placements is not decided.
LEAST = 8
# Draws in a row that have been in every shared partial training, after which there is another one.
NOTHING_NEW = 5

# Trials that exceed the limits before a search is given up of which no other one has ended.
ALL_INFEASIBLE = 10


class SearchScheduler(TrialScheduler):
    """A search over an Optuna study, from where the study stands.

    Configurations are drawn on a study in memory, which the sampler leads and which knows everything that the
    search's own study does; a draw that will not be tried stays there. The search's own gets whole trials,
    each in one write, so that whatever kills the search leaves none half-drawn.

    adjust: applied to every configuration the space draws, for what the command line overrides.
    forecast: by how much a configuration would violate each limit, as far as that is known before it is
        tried; one that would is passed to the sampler as infeasible and drawn anew.
    shared partial trainings: of plain trainings that placements go into, how many there are at first; 0
        where each trial starts from new weights. With shared partial trainings, `adjust` sets
        `training.insert_at`, all hyperparameters are those of trial 0, and nothing is pruned, as what
        follows a shared partial training is short. It then ends before all its trials are spent when
        placements are told apart as far as matters; `decided` says how.
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
        shared_trainings: int = 0,
    ) -> None:
        super().__init__(study, plan)
        self.space, self.adjust, self.forecast = space, adjust, forecast
        self.shared_trainings = SharedTrainings(shared_trainings, self.records)
        self._shared: dict[
            str, Any
        ] = {}  # the hyperparameters of trial 0, which those of one shared partial training share
        # What is tried after the baseline, in this order.
        self._given: list[tuple[Role, Mapping[str, Any]]] = [
            *((Role.CANDIDATE, params) for params in study.user_attrs.get(WARM_START, [])),
            *((Role.PUBLISHED, params) for params in space.published()),
        ]
        self.rungs = Rungs(plan.budget)
        self._sampler, self._chance = sampler, RandomSampler(len(study.get_trials(deepcopy=False)))
        self._drawn = memory_study(sampler, directions=study.directions)
        self._seen: Counter[str] = Counter()  # how often each configuration was drawn
        # Trials that a person put into the study by `enqueue_trial`; and how many of them have been tried.
        self._waiting: deque[FrozenTrial] = deque()
        self._enqueued = 0
        self._tuned = True  # the plain backbone still has something to tune
        # Scores of two shared partial trainings, and the best of many, are compared by a model of what
        # placements add.
        self._models = len(plan.objectives) == 1 and (
            shared_trainings > 0 or isinstance(sampler, PlacementSampler)
        )
        self._model = GrowingModel()
        self.placement_verdict = ""
        if self._models and not study.user_attrs.get(EXPECTED):
            study.set_user_attr(EXPECTED, True)
        self._read()
        self._update_records()

    def _read(self) -> None:
        for trial in self.study.get_trials(deepcopy=False):
            if trial.state is TrialState.WAITING:
                self._waiting.append(trial)
                continue
            twin = len(self._drawn.get_trials(deepcopy=False))
            self._drawn.add_trial(trial)
            record = read_record(trial)
            if record is None:  # not of ours
                continue
            self._seen[_key(record.config)] += 1
            if WARM_START in trial.user_attrs:
                continue
            self._enqueued += ENQUEUED in trial.system_attrs
            self._share(trial.params)
            self._recover(trial, record, [(self._drawn, twin)])

    @property
    def all_infeasible(self) -> str | None:
        """Why the limits leave nothing to find, once the first trials have all exceeded them."""
        hopeful = (State.COMPLETE, State.PRUNED, State.ERROR)
        if any(record.state in hopeful for record in self.records.values()):  # soon found where there is one
            return None
        records = [record for record in self.records.values() if record.state is State.INFEASIBLE]
        if len(records) < min(ALL_INFEASIBLE, self.plan.trials or ALL_INFEASIBLE):
            return None
        return f"none of the first {len(records)} trials could be trained; the last one: {records[-1].reason}"

    def ask(self) -> TrialRecord | None:
        """The next trial, first those that an earlier run left open; None when there is none.

        Raises InputError for errors of a user-defined space.
        """
        self.waiting = False
        if self.closing or self.all_infeasible:
            return None
        if self.placement_verdict and not self._unfinished:
            return None
        if self._unfinished:
            return self.records[self._unfinished.popleft()]
        if self.plan.trials is not None and len(self.records) >= self.plan.trials:
            return None
        if (
            len(self.shared_trainings.begun) >= self.shared_trainings.count > 0
            and not self.shared_trainings.ready
        ):
            self.waiting = bool(self.shared_trainings.coming)
            return None
        enqueued = self._takes_enqueued
        for attempt in range(REFUSED):
            # Of what is given and refused, another draw takes the place.
            role, fixed = (Role.CANDIDATE, None) if attempt else self._next()
            if attempt == NOTHING_NEW and self.shared_trainings:
                role, fixed = Role.BASELINE, self.space.plain
            if fixed is not None or self._shared:
                self._drawn.enqueue_trial({**(fixed or {}), **self._shared})
            # A sampler that keeps drawing the same point gets a random one.
            self._drawn.sampler = self._sampler if attempt < REDRAWS // 2 else self._chance
            trial = self._drawn.ask()
            try:
                config = self.adjust(self.space(trial))
            except optuna.TrialPruned:
                self._reject(trial, {"space": 1.0})
                continue
            if role is Role.REPLICATE:
                config = config.change(training={"perturb": PERTURB})
            # What is given twice goes into a shared partial training once; from new weights it gets another
            # seed.
            if (fixed is None or self.shared_trainings) and attempt < REDRAWS and self._repeats(config):
                self._drawn.tell(trial, state=TrialState.FAIL)  # nothing is to be learned from it
                continue
            violations = self.forecast(config)
            # What is given is tried and measured, whatever the forecast; and so is what is drawn, in the end.
            if fixed is None and attempt < 2 * REDRAWS and any(part > 0 for part in violations.values()):
                self._reject(trial, violations)
                continue
            return self._create(trial, role, config, self._waiting.popleft() if enqueued else None)
        raise InputError(
            f"space {self.space.name!r} refused {REFUSED} draws in a row (TrialPruned); it must draw what it "
            f"takes"
        )

    @property
    def _takes_enqueued(self) -> bool:
        """Whether an enqueued trial is next: they follow the baseline and the shared partial trainings."""
        return (
            bool(self._waiting and self.records)
            and len(self.shared_trainings.begun) >= self.shared_trainings.count
        )

    def _next(self) -> tuple[Role, Mapping[str, Any] | None]:
        """The role of the next trial and the parameters it is given."""
        number, space = len(self.records), self.space
        if number == 0:
            return Role.BASELINE, space.baseline
        if len(self.shared_trainings.begun) < self.shared_trainings.count:
            return Role.BASELINE, space.plain
        if self._takes_enqueued:
            return Role.CANDIDATE, self._waiting[0].system_attrs.get(ENQUEUED, {})
        number -= max(0, len(self.shared_trainings.begun) - 1) + self._enqueued
        if number <= len(self._given):
            return self._given[number - 1]
        if self.shared_trainings:
            return (
                (Role.REPLICATE, space.plain)
                if self.shared_trainings.lacks_replicate
                else (Role.CANDIDATE, None)
            )
        baselines = sum(record.role is Role.BASELINE for record in self.records.values())
        if self._tuned and baselines < self.plan.baseline_share * (number + 1):
            return Role.BASELINE, space.plain
        return Role.CANDIDATE, None

    def _share(self, params: Mapping[str, Any]) -> None:
        """Keep the hyperparameters of the first trial for all the others, where they share shared partial
        trainings.
        """
        if self.shared_trainings and not self._shared:
            self._shared = {name: value for name, value in params.items() if parse_parameter(name) is None}

    def _repeats(self, config: TrialConfig) -> bool:
        """Whether a trial of it would tell nothing new."""
        if self.shared_trainings:
            return not is_shared_training(config) and self.shared_trainings.choose(config) is None
        # The sampler of placements means it: one that may be best is told from a lucky one by another seed.
        return self._seen[_key(config)] > 0 and not isinstance(self._sampler, PlacementSampler)

    def _reject(self, trial: optuna.Trial, violations: Mapping[str, float]) -> None:
        for key, value in violations.items():
            trial.set_constraint(key, value)
        self._drawn.tell(trial, state=TrialState.PRUNED)

    def _create(
        self, trial: optuna.Trial, role: Role, config: TrialConfig, waiting: FrozenTrial | None
    ) -> TrialRecord:
        """Put what was drawn into the search's study. waiting: the trial there that it becomes, if any."""
        # What comes again all the same tells more with another seed than a second time with the same one.
        key = _key(config)
        again = self._seen[key]
        self._seen[key] += 1
        config = config.change(seed=(config.seed + again) % 2**32)
        if self.shared_trainings and not is_shared_training(config):
            shared_training = self.shared_trainings.choose(config)
            assert shared_training is not None  # or it had been drawn anew
            config = config.change(seed=shared_training)
        if role is Role.REPLICATE:
            pass  # it is plain, and none that one would have
        elif self.space.as_baseline(config) == config:
            self._tuned &= role is not Role.BASELINE or not again
            role = Role.BASELINE  # also where the sampler chose it
        elif role is Role.BASELINE:
            role = Role.CANDIDATE  # the space pays no heed to what was given
        attributes = {SHARED_TRAINING: config.seed} if self.shared_trainings else {}
        for name, value in attributes.items():
            trial.set_user_attr(name, value)
        self._share(trial.params)
        record = self._add(
            role,
            config,
            params=trial.params,
            distributions=trial.distributions,
            attributes=attributes,
            waiting=waiting,
        )
        self._enqueued += waiting is not None
        self._open[record.number].append((self._drawn, trial))
        return record

    def _update_records(self) -> None:
        if self._models:
            update_expected(self.study, self.records, self._model)
        done = [r for r in self.records.values() if r.state is State.COMPLETE and r.config.model.placement]
        if self.shared_trainings and len(done) >= LEAST and len(self.plan.objectives) == 1:
            metric = self.plan.metric
            found = estimate_posterior(self.study, metric.margin / metric.scale)
            self.placement_verdict = found.verdict if found.is_decided else ""
            if self.study.user_attrs.get(PLACEMENT_VERDICT, "") != self.placement_verdict:
                self.study.set_user_attr(PLACEMENT_VERDICT, self.placement_verdict)

    def _enter(self, record: TrialRecord) -> bool | None:
        if self.shared_trainings:
            return None
        group = str(Role.BASELINE if record.role is Role.BASELINE else Role.CANDIDATE)
        return self.rungs.enter(record.number, group, record.history[-1][RESOURCE], self.plan.score(record))


def _key(config: TrialConfig) -> str:
    """The same for configurations that differ in nothing but the seed."""
    return json.dumps(config.change(seed=0).to_json(), sort_keys=True)

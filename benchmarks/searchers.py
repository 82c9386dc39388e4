"""Search tables of placements. Each search is a generator of its best trial after each number of trainings.

It yields the number of trainings so far, in which a stopped training counts as the fraction that ran, and the
parameters of the trial that the search would return. Optuna's samplers return the trial with the best score,
as Optuna does. Early stopping is asynchronous successive halving after a ninth and a third of the epochs:
Optuna's pruner with its TPE, and Ray's ASHAScheduler with its OptunaSearch, both with their defaults. PASHA
(`pasha.py`) resumes trainings, with the same TPE. Trials run one after another.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import optuna
import planted
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FixedTrial, FrozenTrial, TrialState, create_trial
from pasha import Pasha

from search.placement_effects import IndexedPlacement, parse_placement
from search.placement_posterior import best_trial

RUNGS = (1, 3, 9)  # ninths of a training's epochs

Params = dict[str, float | str]
Progress = Iterator[tuple[float, Params]]
Choose = Callable[[Study, "Table"], FrozenTrial]


class Table(Protocol):
    """Table of placements.

    Attributes:
        noise: Standard deviation of the scores of one placement.
        spread: Variance of the placements' scores.
    """

    noise: float
    spread: float

    def draw(self, trial: optuna.Trial) -> IndexedPlacement:
        """Draw a placement."""

    def score(self, placement: IndexedPlacement, params: Params) -> float:
        """Return the score of a training."""


def best_score(study: Study, table: Table) -> FrozenTrial:
    """Return the trial with the best score."""
    return study.best_trial


def best_posterior(study: Study, table: Table) -> FrozenTrial:
    """Return the trial with the highest posterior mean in the model of placements."""
    return best_trial(study)


def best_shrunk_mean(study: Study, table: Table) -> FrozenTrial:
    """Return the trial with the best mean by placement, shrunk by the true ratio of variances."""
    scores: defaultdict[Any, list[float]] = defaultdict(list)
    first: dict[Any, FrozenTrial] = {}
    trials = study.get_trials(deepcopy=False)
    for trial in trials:
        placement = parse_placement(trial.params)
        assert trial.value is not None
        scores[placement].append(trial.value)
        first.setdefault(placement, trial)
    middle = np.mean([trial.value for trial in trials if trial.value is not None])
    ratio = table.noise**2 / (table.spread or 1.0)

    def mean(placement: Any) -> float:
        count = len(scores[placement])
        return float((np.mean(scores[placement]) - middle) * count / (count + ratio))

    return first[max(scores, key=mean)]


def search_without_pruning(
    table: Table, sampler: BaseSampler, choose: Choose, when: Callable[[int], bool]
) -> Progress:
    """Train every trial to its end. `when` selects the counts at which to yield."""
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for count in range(1, 10**9):
        trial = study.ask()
        study.tell(trial, table.score(table.draw(trial), trial.params))
        if when(count):
            yield count, choose(study, table).params


def search_with_pruner(table: planted.Table, sampler: BaseSampler) -> Progress:
    """Search with Optuna's sampler and SuccessiveHalvingPruner."""
    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3)
    study = optuna.create_study(direction="maximize", sampler=sampler, pruner=pruner)
    spent = 0.0
    while True:
        trial = study.ask()
        shown = table.train(table.draw(trial), trial.params)
        before, pruned = 0, False
        for step in RUNGS:
            spent += (step - before) / RUNGS[-1]
            before, score = step, shown(step / RUNGS[-1])
            trial.report(score, step)
            pruned = step < RUNGS[-1] and trial.should_prune()
            if pruned:
                break
        if pruned:
            study.tell(trial, state=TrialState.PRUNED)
        else:
            study.tell(trial, score)
        yield spent, study.best_trial.params


def search_with_pasha(table: planted.Table, sampler: BaseSampler) -> Progress:
    """Search with Optuna's sampler and PASHA. The sampler gets a pruned trial for each pause."""
    study = optuna.create_study(direction="maximize", sampler=sampler)
    pasha, spent = Pasha(RUNGS), 0.0
    trials: list[FrozenTrial] = []
    trainings: list[Callable[[float], float]] = []
    while True:
        number = pasha.choose()
        if number == len(trials):
            trial = study.ask()
            trainings.append(table.train(table.draw(trial), trial.params))
            study.tell(trial, state=TrialState.FAIL)  # the sampler ignores it
            trials.append(study.get_trials(deepcopy=False)[-1])
        curve, step = pasha.curves[number], pasha.target(number)
        spent += (step - len(curve)) / RUNGS[-1]
        curve += [trainings[number](i / RUNGS[-1]) for i in range(len(curve) + 1, step + 1)]
        pasha.update(number)
        study.add_trial(
            create_trial(
                state=TrialState.COMPLETE if step == RUNGS[-1] else TrialState.PRUNED,
                params=trials[number].params,
                distributions=trials[number].distributions,
                value=curve[-1],
                intermediate_values={step: curve[-1]},
            )
        )
        yield spent, trials[pasha.best()].params


def search_with_ray(table: planted.Table, seed: int) -> Progress:
    """Search with Ray's OptunaSearch and ASHAScheduler. The best last score wins, as in `get_best_result`."""
    from ray.tune.schedulers import ASHAScheduler
    from ray.tune.search.optuna import OptunaSearch

    searcher = OptunaSearch(
        space=lambda trial: table.draw(trial) and None, metric="score", mode="max", seed=seed
    )
    scheduler = ASHAScheduler(metric="score", mode="max", max_t=RUNGS[-1], reduction_factor=3)
    spent, best, returned = 0.0, -np.inf, {}
    for number in range(10**9):
        trial = SimpleNamespace(trial_id=f"trial{number}")
        params = searcher.suggest(trial.trial_id)
        assert isinstance(params, dict)
        drawn = table.draw(FixedTrial(params))  # type: ignore[arg-type]
        shown = table.train(drawn, params)
        scheduler.on_trial_add(None, trial)
        for step in range(1, RUNGS[-1] + 1):
            spent += 1 / RUNGS[-1]
            score = shown(step / RUNGS[-1])
            result = {"training_iteration": step, "score": score, "trial_id": trial.trial_id}
            if step == RUNGS[-1] or scheduler.on_trial_result(None, trial, result) == scheduler.STOP:
                break
            searcher.on_trial_result(trial.trial_id, result)
        scheduler.on_trial_complete(None, trial, result)
        searcher.on_trial_complete(trial.trial_id, result)
        if score > best:
            best, returned = score, params
        yield spent, returned

"""A sampler of placements: draws from a model of what their parts add to the score (Thompson sampling).

Each trial draws all effects once from the posterior of `search.placement_model` and is given the placement
that is best by that draw. What is uncertain is tried as often as it may be best, with nothing to tune; trials
that run at once draw apart and so differ by themselves, without pretending that pending ones were bad. A
placement that may be best is drawn again, which is how it is told from a lucky one.

Parameters that are no part of a placement are those of another sampler, TPE where none is given; so is all
of a trial whose space does not draw its placements with `choices.placement` or `choices.ascending`. One
objective alone: with several there is no single score whose parts could be added.

The model learns from completed trials. A pruned trial's score is of an earlier epoch and so lower by an
unknown amount, a failed one has none; both stay the other sampler's to learn from. A placement that has
broken a limit and never completed is not drawn again.

Source: W. R. Thompson, On the likelihood that one unknown probability exceeds another (1933).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from attention import InputError
from search.choices import MODULES, SITE, SITES, TYPE, PlacementParameter, parse_parameter
from search.placement_model import (
    EffectDraw,
    EffectModel,
    IndexedModule,
    IndexedPlacement,
    Weights,
    block_weights,
    choice_weights,
    curve_weights,
    placement_weights,
)
from search.placement_planner import PlacementChoices, Planner

SHARED_TRAINING = (
    "shared_training"  # an attribute of a trial: the seed of the plain training that it goes on from
)
NO_TYPE = ""  # of modules in a space that draws no types
STALE = 50  # a model that knows all but this part of the trials, 1/50, is as good as new
REFIT = 1.1  # of the trials that variances were estimated from, there are when they are estimated again
REDRAWS = 10  # draws in a row that may lead to a placement which has broken a limit


def parse_placement(params: Mapping[str, Any]) -> IndexedPlacement | None:
    """The placement that a trial's parameters draw, None where they draw none, or not all of it."""
    if MODULES not in params:
        return None
    parts = {parse_parameter(name): value for name, value in params.items()}
    sites = {part.module: (part.prefix, value) for part, value in parts.items() if part and part.what == SITE}
    count = params[MODULES]
    if any(i not in sites for i in range(1, count + 1)):
        return None
    modules = []
    for i in range(1, count + 1):
        options = sorted(
            (part.what, value)
            for part, value in parts.items()
            if part and part.module == i and part.what not in (SITE, TYPE)
        )
        modules.append(
            IndexedModule(sites[i][1], parts.get(PlacementParameter(TYPE, i), NO_TYPE), tuple(options))
        )
    return IndexedPlacement(sites[1][0] if count else "", tuple(modules))


def trial_weights(trial: FrozenTrial) -> Weights | None:
    """Of all effects in a trial's score; None of a trial without a placement."""
    placement = parse_placement(trial.params)
    if placement is None:
        return None
    found = placement_weights(placement)
    if SHARED_TRAINING in trial.user_attrs:
        found |= block_weights(placement, trial.user_attrs[SHARED_TRAINING])
    for name, value in trial.params.items():
        if parse_parameter(name) is None:
            found.update(_setting(name, value, trial.distributions[name]))
    return found


def _setting(name: str, value: Any, distribution: Any) -> Weights:
    if isinstance(distribution, CategoricalDistribution):
        return choice_weights(name, value)
    low, high, x = distribution.low, distribution.high, value
    if low == high:
        return {}
    if distribution.log:
        low, high, x = np.log(low), np.log(high), np.log(x)
    return curve_weights(name, float((x - low) / (high - low)))


def fit_model(
    study: Study, logs: Mapping[str, float] | None = None, *, estimate: bool = True
) -> EffectModel | None:
    """The model of a study's completed trials, None where none has a placement. logs, estimate: `Model`'s.

    Scores count from the better end: a metric that is minimised has its sign turned.
    Raises InputError for a study of several objectives.
    """
    if len(study.directions) > 1:
        raise InputError("a model of placements knows one objective alone; this study has several")
    sign = -1 if study.direction is StudyDirection.MINIMIZE else 1
    done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    known = [(found, sign * trial.values[0]) for trial in done if (found := trial_weights(trial)) is not None]
    if not known:
        return None
    return EffectModel([found for found, _ in known], [score for _, score in known], logs, estimate=estimate)


class GrowingModel:
    """The model of a study that grows: fitted again at each call, to what has completed since."""

    def __init__(self) -> None:
        self._model: EffectModel | None = None
        self._known = -1  # completed trials that it was fitted to
        self._estimated = 0  # and that its variances were estimated from

    def __call__(self, study: Study) -> EffectModel | None:
        """None where no completed trial has a placement. Raises InputError as `fit` does."""
        done = len(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)))
        if not 0 <= done - self._known < max(1, self._known // STALE):
            # A trial more changes effects at once, and the variances of hundreds of trials hardly.
            estimate = not self._estimated <= done <= self._estimated * REFIT
            logs = self._model.logs if self._model else None
            self._model = fit_model(study, logs, estimate=estimate)
            self._known = done
            self._estimated = done if estimate else self._estimated
        return self._model


class PlacementSampler(BaseSampler):
    """Draws placements from a model of their effects, and the rest from `others`.

    seed: of the draws. others: TPE with the same seed where it is None.
    """

    def __init__(self, seed: int | None = None, others: BaseSampler | None = None) -> None:
        self._random = np.random.default_rng(seed)
        self._others = others or TPESampler(seed=seed, constant_liar=True)
        self._plans: dict[int, IndexedPlacement] = {}  # of the trials that are being drawn
        self._model = GrowingModel()

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        found = self._others.infer_relative_search_space(study, trial)
        return {name: kind for name, kind in found.items() if parse_parameter(name) is None}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return self._others.sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        part = parse_parameter(param_name)
        if part is None or SITES not in trial.user_attrs:
            return self._others.sample_independent(study, trial, param_name, param_distribution)
        if trial.number not in self._plans:
            self._plans[trial.number] = self._plan(study, trial, param_distribution)
        wanted = _wanted(self._plans[trial.number], part, trial)
        # What was given to a trial, or is drawn for the first time, may leave the plan no room or no word.
        return self._chance(param_distribution) if not _fits(wanted, param_distribution) else wanted

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        if len(study.directions) > 1:
            raise InputError(
                "the sampler of placements knows one objective alone; use tpe or nsga2 for several"
            )
        self._others.before_trial(study, trial)

    def after_trial(
        self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        self._plans.pop(trial.number, None)
        self._others.after_trial(study, trial, state, values)

    def reseed_rng(self) -> None:
        self._random = np.random.default_rng()
        self._others.reseed_rng()

    def _plan(self, study: Study, trial: FrozenTrial, distribution: Any) -> IndexedPlacement:
        """The best placement by a draw of the effects. distribution: of the parameter asked for first."""
        trials = study.get_trials(deepcopy=False)
        done = [t for t in trials if t.state is TrialState.COMPLETE]
        model = self._model(study)
        count = trial.params.get(MODULES)
        prefix, sites = trial.user_attrs[SITES]
        choices = PlacementChoices(
            prefix=prefix,
            sites=sites,
            most=distribution.high if count is None else count,
            **_types(trials),
        )
        tried = {found for t in done if (found := parse_placement(t.params)) is not None}
        broken = {
            parse_placement(t.params) for t in trials if any(c > 0 for c in t.constraints.values())
        } - tried
        for _ in range(REDRAWS):
            draw = model.draw(self._random) if model else EffectDraw(None, np.empty(0), self._random)
            plan = Planner(draw, choices).best(tried, self._random, count)
            if plan not in broken:
                break
        return plan

    def _chance(self, distribution: Any) -> Any:
        if isinstance(distribution, CategoricalDistribution):
            return distribution.choices[self._random.integers(len(distribution.choices))]
        return int(self._random.integers(distribution.low, distribution.high + 1))


def _wanted(plan: IndexedPlacement, part: PlacementParameter, trial: FrozenTrial) -> Any:
    """What the plan has for a part; None where it has nothing."""
    if part.what == MODULES:
        return len(plan.modules)
    if part.module > len(plan.modules):
        return None
    module = plan.modules[part.module - 1]
    if part.what == SITE:
        return module.site
    if part.what == TYPE:
        return module.type
    same = trial.params.get(f"{TYPE}{part.module}", NO_TYPE) == module.type
    return dict(module.options).get(part.what) if same else None


def _fits(value: Any, distribution: Any) -> bool:
    if isinstance(distribution, CategoricalDistribution):
        return value in distribution.choices
    return value is not None and distribution.low <= value <= distribution.high


def _types(trials: Sequence[FrozenTrial]) -> dict[str, Any]:
    """The types, and of each the options, that trials have had to choose from."""
    types: dict[str, None] = {}
    options: dict[str, dict[str, Sequence[Any]]] = {}
    distribution: Any
    for trial in trials:
        for name, distribution in trial.distributions.items():
            part = parse_parameter(name)
            if part is None or part.what in (MODULES, SITE):
                continue
            if part.what == TYPE:
                types.update(dict.fromkeys(distribution.choices))
            else:
                kind = trial.params.get(f"{TYPE}{part.module}", NO_TYPE)
                options.setdefault(kind, {})[part.what] = distribution.choices
    return {"types": list(types) or [NO_TYPE], "options": options}

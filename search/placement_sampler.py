"""A sampler of placements: Thompson sampling from a model of their effects.

For each trial, all effects are drawn once from the posterior of `search.placement_model`, and the trial gets
the placement that is best by that draw. So a placement is tried as often as it may be the best, without
tuning parameters. Simultaneous trials use separate draws and therefore differ, so pending trials need no
special handling. A placement that may be the best is drawn again, which separates a good placement from a
lucky one. If trials have no hyperparameters, one whose mean score is already known teaches nothing more, so a
draw from the prior takes its place.

Parameters outside the placement are left to another sampler, by default TPE, which learns from the newest
trials and the best ones. So is the whole trial if its space does not draw placements with `choices.placement`
or `choices.ascending`.

The model learns from completed trials. A pruned trial's score is from an earlier epoch and lower by an
unknown amount, and a failed trial has none. The other sampler learns from both. A placement that exceeded a
limit and never completed is not drawn again.

Source: W. R. Thompson, On the likelihood that one unknown probability exceeds another (1933).
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, TPESampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from automl.base.errors import InputError
from search.choices import MODULES, NO_TYPE, SITE, SITES, TYPE, PlacementParameter, parse_parameter
from search.optuna_internals import TrialLimit
from search.placement_effects import (
    IndexedPlacement,
    Weights,
    is_setting,
    parse_placement,
    placement_weights,
    read_prior,
    trial_weights,
)
from search.placement_model import EffectDraw, EffectModel
from search.placement_planner import DrawnChoices, Planner

STALE = 50  # a model that lacks up to 1/50 of the trials is not refitted
REFIT = 1.1  # variances are estimated again when the number of trials has grown by this factor
NEWEST, BEST = 500, 50  # numbers of trials that the sampler of other parameters learns from
KNOWN = 0.1  # uncertainty of a known mean score, in standard deviations of all scores
REDRAWS = 10  # largest number of draws to avoid a placement that exceeded a limit


def fit_model(
    study: Study,
    logs: Mapping[str, float] | None = None,
    *,
    estimate: bool = True,
    known: dict[int, Weights | None] | None = None,
) -> EffectModel | None:
    """Fit a model to a study's completed trials. Return None if none has a placement.

    Signs are chosen such that larger scores are better. `logs` and `estimate` are those of `EffectModel`.
    `known` holds the weights of trials by number, and gets those of new trials.
    """
    sign = -1 if study.direction is StudyDirection.MINIMIZE else 1
    known = {} if known is None else known
    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    known.update({trial.number: trial_weights(trial) for trial in complete if trial.number not in known})
    pairs = ((known[trial.number], sign * trial.values[0]) for trial in complete)
    observations = [(effects, score) for effects, score in pairs if effects is not None]
    if not observations:
        return None
    weights, scores = zip(*observations, strict=True)
    return EffectModel(weights, scores, logs, estimate=estimate, prior=read_prior(study))


class GrowingModel:
    """Model of a growing study, refitted at a call if enough trials have completed since."""

    def __init__(self) -> None:
        self._model: EffectModel | None = None
        self._known = -1  # number of completed trials in the fit
        self._estimated = 0  # number of trials when variances were estimated
        self._weights: dict[int, Weights | None] = {}  # of completed trials, by number
        self._expected: dict[int, float] = {}
        self._complete: list[FrozenTrial] = []
        self._predicts: bool | None = None  # None if it is not known yet

    def __call__(self, study: Study) -> EffectModel | None:
        """Return the model, or None if no completed trial has a placement. Raises errors of `fit_model`."""
        self._complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        done = len(self._complete)
        if not 0 <= done - self._known < max(1, self._known // STALE):
            # A new trial changes the effects at once, but hardly the variances of hundreds of trials.
            self._fit(study, estimate=not self._estimated <= done <= self._estimated * REFIT)
        return self._model

    def _fit(self, study: Study, *, estimate: bool) -> None:
        logs = self._model.logs if self._model else None
        self._model = fit_model(study, logs, estimate=estimate, known=self._weights)
        self._known = len(self._complete)
        self._estimated = self._known if estimate else self._estimated
        self._expected, self._predicts = {}, None

    def expected_scores(self, study: Study) -> dict[int, float]:
        """Return the posterior mean of the score of each completed trial with a placement, by number.

        Empty if the model does not predict scores better than their mean does; trials are then ranked by
        their scores.
        """
        model = self(study)
        if model is None:
            return {}
        if self._predicts is None:
            self._predicts = model.predicts()
        if not self._predicts:
            return {}
        new = {}
        for trial in self._complete:
            if trial.number in self._expected:
                continue
            if trial.number not in self._weights:
                self._weights[trial.number] = trial_weights(trial)
            if (effects := self._weights[trial.number]) is not None:
                new[trial.number] = effects
        sign = -1 if study.direction is StudyDirection.MINIMIZE else 1
        means = model.expect(list(new.values()))
        self._expected |= {n: sign * (model.centre + float(mean)) for n, mean in zip(new, means, strict=True)}
        return self._expected


class _History:
    """Placements and choices of a study's trials, each of which is read once after its end."""

    def __init__(self) -> None:
        self.tried: set[IndexedPlacement | None] = set()  # of completed trials
        self.rejected: set[IndexedPlacement | None] = set()  # of trials that exceeded a limit
        self.choices = DrawnChoices()  # that trials had
        self._read: set[int] = set()
        self._first = 0  # all trials before it were read

    def update(self, study: Study) -> None:
        """Read the trials that have changed."""
        trials = study.get_trials(deepcopy=False)
        while self._first < len(trials) and self._first in self._read:
            self._first += 1
        for trial in trials[self._first :]:
            if trial.number in self._read:
                continue
            self.choices.add(trial)
            if trial.state.is_finished():
                self._read.add(trial.number)
                placement = parse_placement(trial.params, trial.distributions)
                if trial.state is TrialState.COMPLETE:
                    self.tried.add(placement)
                if any(violation > 0 for violation in trial.constraints.values()):
                    self.rejected.add(placement)


def _make_tpe(seed: int | None) -> TPESampler:
    """Return TPE that draws hyperparameters jointly, also those that only some trials have."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)  # of `group`
        return TPESampler(seed=seed, multivariate=True, group=True, constant_liar=True)


class PlacementSampler(BaseSampler):
    """Sampler of placements by a model of their effects, and of other parameters by `others`, or by TPE."""

    def __init__(self, seed: int | None = None, others: BaseSampler | None = None) -> None:
        self._random = np.random.default_rng(seed)
        self._others = others or _make_tpe(seed)
        self._plans: dict[int, IndexedPlacement] = {}  # plans of the trials that are being drawn
        self._model = GrowingModel()
        self._history = _History()
        self._limit = TrialLimit(newest=NEWEST, best=BEST)
        self._limited: Study | None = None

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        distributions = self._others.infer_relative_search_space(self._limited or study, trial)
        return {name: kind for name, kind in distributions.items() if parse_parameter(name) is None}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return self._others.sample_relative(self._limited or study, trial, search_space)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        parameter = parse_parameter(param_name)
        # An option with a range of numbers, of a user-defined type, is no choice of the model.
        is_choice = isinstance(param_distribution, CategoricalDistribution)
        is_planned = parameter is not None and (is_choice or parameter.kind in (MODULES, SITE))
        if parameter is None or not is_planned or SITES not in trial.user_attrs:
            return self._others.sample_independent(
                self._limited or study, trial, param_name, param_distribution
            )
        if trial.number not in self._plans:
            self._plans[trial.number] = self._plan(study, trial, param_distribution)
        planned = _planned_value(self._plans[trial.number], parameter, trial)
        # Fixed parameters, or choices without a trial yet, may make the plan impossible.
        return self._chance(param_distribution) if not _fits(planned, param_distribution) else planned

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        if len(study.directions) > 1:
            raise InputError("--sampler placement takes one objective; use tpe or nsga2 for several")
        self._limited = self._limit(study)
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
        """Return the best placement by a draw of the effects, given the first parameter's `distribution`."""
        model, history = self._model(study), self._history
        history.update(study)
        count = trial.params.get(MODULES)
        prefix, sites = trial.user_attrs[SITES]
        least, most = (distribution.low, distribution.high) if count is None else (count, count)
        choices = history.choices.placements(prefix, sites, least=least, most=most)

        def fits(placement: IndexedPlacement) -> bool:
            return placement.prefix == prefix and count in (None, len(placement.modules))

        def draw_prior() -> EffectDraw:
            return EffectDraw(None, np.empty(0), self._random, read_prior(study))

        for _ in range(REDRAWS):
            draw = model.draw(self._random) if model else draw_prior()
            plan = Planner(draw, choices).best(draw.best_tried(fits), self._random, count)
            if model and plan in history.tried and _is_known(model, plan):
                plan = Planner(draw_prior(), choices).best([], self._random, count)
            if plan not in history.rejected or plan in history.tried:
                break
        return plan

    def _chance(self, distribution: Any) -> Any:
        if isinstance(distribution, CategoricalDistribution):
            return distribution.choices[self._random.integers(len(distribution.choices))]
        return int(self._random.integers(distribution.low, distribution.high + 1))


def _is_known(model: EffectModel, placement: IndexedPlacement) -> bool:
    """Return whether one more training of a placement would teach nothing, as its mean score is known."""
    # False if trials differ in hyperparameters, as then it may teach something about these.
    if any(map(is_setting, model.columns)):
        return False
    _, covariance = model.predict([placement_weights(placement)])
    return bool(covariance[0, 0] < (KNOWN * model.scale) ** 2)


def _planned_value(plan: IndexedPlacement, parameter: PlacementParameter, trial: FrozenTrial) -> Any:
    """Return the planned value of a parameter, or None."""
    if parameter.kind == MODULES:
        return len(plan.modules)
    if parameter.module > len(plan.modules):
        return None
    module = plan.modules[parameter.module - 1]
    if parameter.kind == SITE:
        return module.site
    if parameter.kind == TYPE:
        return module.type
    same = trial.params.get(f"{TYPE}{parameter.module}", NO_TYPE) == module.type
    return dict(module.options).get(parameter.kind) if same else None


def _fits(value: Any, distribution: Any) -> bool:
    if isinstance(distribution, CategoricalDistribution):
        return value in distribution.choices
    return value is not None and distribution.low <= value <= distribution.high

"""Results of a study of placements: the best trial, effects with intervals, and whether any placement
matters.

The best trial has the highest posterior mean. The highest score also contains luck, the more so the more
trials there are. Only completed trials are compared, since only their models can be confirmed and exported.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState
from scipy.special import expit, ndtri  # importing scipy.stats takes half a second

from automl.base.errors import InputError
from search.placement_effects import (
    Array,
    Effect,
    IndexedPlacement,
    Term,
    Weights,
    add_coefficient,
    is_setting,
    make_matrix,
    parse_placement,
    placement_weights,
    trial_weights,
)
from search.placement_model import EffectModel
from search.placement_sampler import GrowingModel, fit_model

SHOWN = (Term.COST, Term.SITE, Term.TYPE, Term.CELL, Term.OPTION, Term.PAIR)
LEVEL = 0.9  # probability of intervals, and from which a statement counts as certain
DRAWS = 4000  # joint draws of all placements; the error of a probability is below one percent
LISTED = 1000  # largest number of placements to compare, the best by their means


@dataclass(frozen=True, kw_only=True)
class EffectRow:
    """Posterior mean of an effect on the score (larger is better), with the ends of its 90 % interval.

    Attributes:
        term: One of `SHOWN`.
        key: The key in the term, such as a type, or a site with the prefix of its backbone.
        trials: The number of trials with this effect.
    """

    term: str
    key: Hashable
    mean: float
    low: float
    high: float
    trials: int


@dataclass(frozen=True, kw_only=True)
class PlacementRow:
    """Posterior mean of a placement's gain over the backbone without attention, with its 90 % interval.

    Attributes:
        near: The probability that no other row gains more than `margin` above it.
        trials: The number of completed trials with it.
    """

    placement: IndexedPlacement
    mean: float
    low: float
    high: float
    near: float
    trials: int


@dataclass(frozen=True, kw_only=True)
class Posterior:
    """Posterior of a study's placements.

    Attributes:
        effects: The effects, largest first.
        placements: The placements that were tried, best first, at most `LISTED`.
        noise: The standard deviation of a trial's score.
        matters: The probability that some placement gains more than `margin`. A priori, the probability that
            placements make no difference is 1/2. Means and intervals assume that they do.
        spread: The standard deviation between the placements that were tried, from the estimated variances.
        coefficient: How much the prior counts (1 fully, 0 not at all), and its 90 % interval, if any.
    """

    effects: list[EffectRow]
    placements: list[PlacementRow]
    noise: float
    margin: float
    matters: float
    spread: float
    coefficient: tuple[float, float, float] | None = None

    @property
    def reliability(self) -> float:
        """Return the fraction of a single score's variance that is due to the placement."""
        total = self.spread**2 + self.noise**2
        return self.spread**2 / total if total else 0.0

    @property
    def is_null(self) -> bool:
        """Return True if no placement makes a difference that matters, with certainty `LEVEL`."""
        return self.matters <= 1 - LEVEL

    @property
    def is_decided(self) -> bool:
        """Return True if certainly no placement matters, or the first one matters and is best or near it."""
        return self.is_null or (self.matters >= LEVEL and self.placements[0].near >= LEVEL)

    @property
    def verdict(self) -> str:
        """Return the verdict as a sentence with probabilities."""
        if self.is_null:
            return (
                f"no difference that matters: none adds more than {self.margin:g} with {1 - self.matters:.0%}"
            )
        first = self.placements[0]
        near = f"the first is best, or within {self.margin:g} of it, with {first.near:.0%}"
        if self.is_decided:
            return f"decided: {near}"
        return f"not decided: {near}; some adds more than {self.margin:g} with {self.matters:.0%}"


def best_trial(study: Study) -> FrozenTrial:
    """Return the completed trial with the highest posterior mean; of repetitions, the first.

    Returns the trial with the best score if the model is not predictive. Raises InputError if no trial with a
    placement has completed.
    """
    growing = GrowingModel()
    means = growing.expected_scores(study)
    _, trials = _fitted(study, growing)
    sign = -1 if study.direction is StudyDirection.MINIMIZE else 1
    return max(
        (trial for trial, _ in trials),
        key=lambda trial: round(sign * means.get(trial.number, trial.values[0]), 12),
    )


def estimate_posterior(study: Study, margin: float) -> Posterior:
    """Estimate the posterior of the placements from the completed trials.

    `margin` is the smallest difference that matters, in units of the score. Raises InputError as
    `best_trial`.
    """
    model, trials = _fitted(study)
    weights = [trial_effects for _, trial_effects in trials]
    tried = Counter(cast(IndexedPlacement, parse_placement(t.params, t.distributions)) for t, _ in trials)
    placements, gains = list(tried), [_gain(placement) for placement in tried]
    listed = np.argsort(-model.expect(gains), kind="stable")[:LISTED].tolist()
    mean, covariance = model.predict([gains[i] for i in listed])
    draws = np.random.default_rng(0).multivariate_normal(mean, covariance, DRAWS, check_valid="ignore")
    best = draws.max(axis=1)
    placement_effect = probability_of_effects(model, weights)
    near = 1 - placement_effect * (draws < best[:, None] - margin).mean(axis=0)
    rows = [
        PlacementRow(placement=placements[i], **interval, near=probability, trials=tried[placements[i]])
        for i, interval, probability in zip(listed, _intervals(mean, covariance), near.tolist(), strict=True)
    ]
    return Posterior(
        effects=_effect_rows(model),
        placements=sorted(rows, key=lambda row: -row.mean),
        noise=model.noise,
        spread=_spread(model, placements),
        margin=margin,
        matters=placement_effect * float((best > margin).mean()),
        coefficient=_coefficient(model),
    )


def _effect_rows(model: EffectModel) -> list[EffectRow]:
    """Return the effects of a model, largest first."""
    known = [effect for effect in model.columns if effect.term in SHOWN]
    if not known:
        return []
    intervals = _intervals(*model.predict([{effect: 1.0} for effect in known]))
    rows = [
        EffectRow(term=effect.term, key=effect.key, **interval, trials=model.count(effect))
        for effect, interval in zip(known, intervals, strict=True)
    ]
    return sorted(rows, key=lambda row: -abs(row.mean))


def _coefficient(model: EffectModel) -> tuple[float, float, float] | None:
    """Return the coefficient of the prior: its posterior mean and its interval."""
    if not model.prior:
        return None
    mean, covariance = model.predict([{Effect(Term.COEFFICIENT): 1.0}])
    (interval,) = _intervals(mean / model.scale, covariance / model.scale**2)
    return interval["mean"], interval["low"], interval["high"]


def _fitted(
    study: Study, fit: Callable[[Study], EffectModel | None] = fit_model
) -> tuple[EffectModel, list[tuple[FrozenTrial, Weights]]]:
    model = fit(study)
    if model is None:
        raise InputError("no trial that draws a placement has completed; train some first")
    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return model, [(trial, effects) for trial in complete if (effects := trial_weights(trial)) is not None]


def probability_of_effects(model: EffectModel, trials: Sequence[Weights]) -> float:
    """Return the posterior probability that placements make any difference. A priori it is 1/2.

    `trials` are the weights of all effects in each trial's score. Without a difference, a score has an
    intercept and effects of hyperparameters alone.
    """
    reduced = [
        {e: weight for e, weight in effects.items() if e.term == Term.INTERCEPT or is_setting(e)}
        for effects in trials
    ]
    return float(expit(model.evidence() - EffectModel(reduced, model.scores).evidence()))


def _gain(placement: IndexedPlacement) -> Weights:
    """Return the weights of a placement's gain over no attention."""
    gain = placement_weights(placement)
    for effect, weight in placement_weights(IndexedPlacement("", ())).items():
        gain[effect] = gain.get(effect, 0.0) - weight
    return {effect: weight for effect, weight in gain.items() if effect.term != Term.INTERCEPT}


def _spread(model: EffectModel, tried: Sequence[IndexedPlacement]) -> float:
    """Return the standard deviation between placements, from the estimated variances of their effects."""
    gains = add_coefficient([_gain(placement) for placement in tried], model.prior)
    columns = {effect: i for i, effect in enumerate(dict.fromkeys(e for gain in gains for e in gain))}
    z = make_matrix(gains, columns)
    deviations = (z * z).mean(axis=0) - z.mean(axis=0) ** 2
    squares = np.array([model.variance(effect.term) for effect in columns])
    if (known := Effect(Term.COEFFICIENT)) in columns:
        squares[columns[known]] = model.mean[model.columns[known]] ** 2  # not the variance of a guess
    return model.scale * float(np.sqrt(max(0.0, deviations @ squares)))


def _intervals(mean: Array, covariance: Array) -> list[dict[str, float]]:
    """Return each mean and the ends of its interval."""
    half = ndtri((1 + LEVEL) / 2) * np.sqrt(np.maximum(np.diag(covariance), 0))
    ends = zip(mean.tolist(), (mean - half).tolist(), (mean + half).tolist(), strict=True)
    return [{"mean": centre, "low": low, "high": high} for centre, low, high in ends]

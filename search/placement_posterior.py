"""What a study says of placements: the best trial, the effects with their intervals, and whether any matters.

The best trial is the one of the highest posterior mean: the luckiest one's score is its worth and its luck,
and the more trials there are the more of the latter. Only trials that completed are compared, as theirs are
the models that can be confirmed and exported.
"""

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState
from scipy.special import expit, ndtri  # importing scipy.stats takes half a second

from attention import InputError
from search.placement_model import (
    BLOCK,
    CELL,
    COST,
    IN_BLOCK,
    INTERCEPT,
    OPTION,
    PAIR,
    SITE,
    TYPE,
    UNKNOWN,
    Array,
    EffectModel,
    IndexedPlacement,
    Weights,
    is_setting,
    placement_weights,
)
from search.placement_sampler import fit_model, parse_placement, trial_weights

SHOWN = (COST, SITE, TYPE, CELL, OPTION, PAIR)
LEVEL = 0.9  # of intervals, and of what is called sure
DRAWS = 4000  # of all placements at once; the error of a probability is below one percent


@dataclass(frozen=True, kw_only=True)
class EffectRow:
    """One effect on the score, the larger the better: its mean, its 90 % interval, and of how many trials.

    term: one of `SHOWN`. key: which one, such as a type, or a site behind its backbone's prefix.
    """

    term: str
    key: Hashable
    mean: float
    low: float
    high: float
    trials: int


@dataclass(frozen=True, kw_only=True)
class PlacementRow:
    """What a placement adds to the backbone as it is, the larger the better.

    mean, low, high: with its 90 % interval. near: the probability that none adds more than `margin`
    beyond it. trials: that have completed with it.
    """

    placement: IndexedPlacement
    mean: float
    low: float
    high: float
    near: float
    trials: int


@dataclass(frozen=True, kw_only=True)
class Posterior:
    """effects: the largest first. placements: that were tried, the best first.

    noise: of one trial, as a standard deviation, with what its block does to its modules.
    spread: of the placements that were tried, as a standard deviation, by the variances that were estimated.
    matters: the probability that some placement adds more than `margin` to the backbone as it is. Before any
        trial it is even that placements make no difference at all; means and intervals are for that they do.
    may_matter: the same where before any trial it is as even that scores have no effects at all, neither of
        placements nor of what blocks do to modules. A few blocks do not tell these apart, so that to be sure
        of no difference both have to be small.
    """

    effects: list[EffectRow]
    placements: list[PlacementRow]
    noise: float
    margin: float
    matters: float
    may_matter: float
    spread: float

    @property
    def reliability(self) -> float:
        """The part of a single score's variance that is the placement's."""
        whole = self.spread**2 + self.noise**2
        return self.spread**2 / whole if whole else 0.0

    @property
    def is_null(self) -> bool:
        """Surely no placement makes a difference that matters."""
        return self._may <= 1 - LEVEL

    @property
    def _may(self) -> float:
        return max(self.matters, self.may_matter)

    @property
    def is_decided(self) -> bool:
        """Surely the first makes one, and is the best or near it; or none does."""
        return self.is_null or (self.matters >= LEVEL and self.placements[0].near >= LEVEL)

    @property
    def verdict(self) -> str:
        """In a sentence, with probabilities."""
        if self.is_null:
            return f"no difference that matters: none adds more than {self.margin:g} with {1 - self._may:.0%}"
        first = self.placements[0]
        near = f"the first is best, or within {self.margin:g} of it, with {first.near:.0%}"
        if self.is_decided:
            return f"decided: {near}"
        return f"not decided: {near}; some adds more than {self.margin:g} with {self.matters:.0%}"


def best_trial(study: Study) -> FrozenTrial:
    """Return the completed trial of the highest posterior mean, of repetitions the first.

    The trial of the best score where the model predicts nothing.

    Raises InputError where no trial with a placement has completed, or for several objectives.
    """
    model, trials = _fitted(study)
    found = expected_scores(study, model)
    sign = -1 if study.direction is StudyDirection.MINIMIZE else 1
    return max(
        (trial for trial, _ in trials),
        key=lambda trial: round(sign * found.get(trial.number, trial.values[0]), 12),
    )


def expected_scores(study: Study, model: EffectModel) -> dict[int, float]:
    """Return the posterior mean of the score of each completed trial with a placement, by its number.

    Empty where the model does not predict the trials' scores better than their mean does: trials are then
    ranked by their scores. Where trials have blocks, the scores of two blocks cannot be compared, so there
    the means are always returned, as in a common block.
    """
    if not (model.has_blocks or model.predicts()):
        return {}
    sign = -1 if study.direction is StudyDirection.MINIMIZE else 1
    trials = _with_placement(study)
    without_block = [
        {effect: weight for effect, weight in found.items() if effect.term not in (BLOCK, IN_BLOCK)}
        for _, found in trials
    ]
    mean, _ = model.predict(without_block)
    middle = float(model.centres.mean())
    return {trial.number: sign * (middle + float(m)) for (trial, _), m in zip(trials, mean, strict=True)}


def estimate_posterior(study: Study, margin: float) -> Posterior:
    """What the completed trials say. margin: the least difference that matters, in units of the score.

    Raises InputError as `best_trial` does.
    """
    model, trials = _fitted(study)
    known = [effect for effect in model.columns if effect.term in SHOWN]
    effects = []
    if known:
        mean, covariance = model.predict([{effect: 1.0} for effect in known])
        for effect, middle, width in zip(known, mean, _half(covariance), strict=True):
            effects.append(
                EffectRow(
                    term=effect.term,
                    key=effect.key,
                    mean=float(middle),
                    low=float(middle - width),
                    high=float(middle + width),
                    trials=model.count(effect),
                )
            )
    effects.sort(key=lambda row: -abs(row.mean))
    tried: dict[IndexedPlacement, int] = {}
    for trial, _ in trials:
        placement = parse_placement(trial.params)
        assert placement is not None  # or it had no weights
        tried[placement] = tried.get(placement, 0) + 1
    mean, covariance = model.predict([_gain(placement) for placement in tried])
    half = _half(covariance)
    drawn = np.random.default_rng(0).multivariate_normal(mean, covariance, DRAWS, check_valid="ignore")
    most = drawn.max(axis=1)
    some = _some_difference(model, trials, without=(*UNKNOWN, IN_BLOCK))
    of_any = _some_difference(model, trials, without=UNKNOWN) if IN_BLOCK in model.logs else some
    large = float((most > margin).mean())
    near = 1 - some * (drawn < most[:, None] - margin).mean(axis=0)
    rows = [
        PlacementRow(
            placement=placement,
            mean=float(mean[i]),
            low=float(mean[i] - half[i]),
            high=float(mean[i] + half[i]),
            near=float(near[i]),
            trials=count,
        )
        for i, (placement, count) in enumerate(tried.items())
    ]
    rows.sort(key=lambda row: -row.mean)
    return Posterior(
        effects=effects,
        placements=rows,
        noise=_noise(model, [found for _, found in trials]),
        spread=_spread(model, list(tried)),
        margin=margin,
        matters=some * large,
        may_matter=of_any * large,
    )


def _fitted(study: Study) -> tuple[EffectModel, list[tuple[FrozenTrial, Weights]]]:
    model = fit_model(study)
    if model is None:
        raise InputError("no trial that draws a placement has completed, so there is nothing to tell of any")
    return model, _with_placement(study)


def _with_placement(study: Study) -> list[tuple[FrozenTrial, Weights]]:
    done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return [(trial, found) for trial in done if (found := trial_weights(trial)) is not None]


def _some_difference(
    model: EffectModel, trials: Sequence[tuple[FrozenTrial, Weights]], *, without: Collection[str]
) -> float:
    """The probability that placements make any difference, which is even before the first trial.

    without: the terms that scores have where they make none, beside hyperparameters.
    """
    alone = [
        {effect: weight for effect, weight in found.items() if effect.term in without or is_setting(effect)}
        for _, found in trials
    ]
    return float(expit(model.evidence() - EffectModel(alone, model.scores).evidence()))


def _gain(placement: IndexedPlacement) -> Weights:
    """Of a placement's score above that of none."""
    found = placement_weights(placement)
    for effect, weight in placement_weights(IndexedPlacement("", ())).items():
        found[effect] = found.get(effect, 0.0) - weight
    return {effect: weight for effect, weight in found.items() if effect.term != INTERCEPT}


def _noise(model: EffectModel, trials: Sequence[Weights]) -> float:
    """The standard deviation of the score of a trial with modules around what these are worth."""
    modules = [count for found in trials if (count := sum(effect.term == IN_BLOCK for effect in found))]
    of_block = model.scale**2 * model.variance(IN_BLOCK) * float(np.mean(modules)) if modules else 0.0
    return float(np.sqrt(model.noise**2 + of_block))


def _spread(model: EffectModel, tried: Sequence[IndexedPlacement]) -> float:
    """The standard deviation between placements that the estimated variances of their parts make."""
    gains = [_gain(placement) for placement in tried]
    columns = {effect: i for i, effect in enumerate(dict.fromkeys(e for gain in gains for e in gain))}
    z = np.zeros((len(gains), len(columns)))
    for row, gain in zip(z, gains, strict=True):
        for effect, weight in gain.items():
            row[columns[effect]] = weight
    apart = z - z.mean(axis=0)
    variances = np.array([model.variance(effect.term) for effect in columns])
    return model.scale * float(np.sqrt((apart**2 @ variances).mean()))


def _half(covariance: Array) -> Array:
    """Half the width of each interval."""
    width: Array = ndtri((1 + LEVEL) / 2) * np.sqrt(np.maximum(np.diag(covariance), 0))
    return width

"""A hierarchical Gaussian model of what each part of a placement adds to the score.

    score = intercept + block + sum over modules (cost + site + type + site x type + options)
            + sum over pairs of modules (sites + types) + sum over modules (block x site x type)
            + placement + settings + noise

Thousands of placements share a few dozen effects, so a trial tells something about all placements that have
a part in common with its own. Each term is Gaussian around 0 with a variance of its own; `placement` is what
the other terms leave unexplained of one placement, and is told from noise by trials that repeat a placement.
`settings` are the hyperparameters: an effect of each choice, and for numbers a smooth curve. A `block` is of
trials that share a shared partial training. A shared partial training may like or dislike a module whatever
that is worth in others, which `block x site x type` is for: ten trials with a module in one shared partial
training are not ten witnesses. What that comes to on Imagenette is in docs/searching.md.

Variances are estimated from the scores by empirical Bayes: they maximise the marginal likelihood, with a
broad prior that holds them where a few trials say nothing. Fitting takes O(trials^3), 10 ms of 100 trials.

Sources: the factorial screening of arXiv 1510.05248; D. V. Lindley, A. F. M. Smith, Bayes estimates for the
linear model (1972), for the hierarchy; C. E. Rasmussen, C. K. I. Williams, Gaussian processes for machine
learning (2006), section 5.4, for the marginal likelihood and its gradient; J. T. Wilson et al. (2020), arXiv
2002.09309, equation 12, for draws from the posterior.
"""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize
from threadpoolctl import ThreadpoolController

Array = NDArray[np.float64]

INTERCEPT, BLOCK, COST, SITE, TYPE, CELL, OPTION, PAIR, PLACEMENT, IN_BLOCK = (
    "intercept", "block", "cost", "site", "type", "site x type", "option", "pair", "placement",
    "block x site x type",
)  # fmt: skip
SETTING = "setting:"  # and the name of the hyperparameter
NOISE = "noise"

# Matrices this small take several threads ten times as long where trials keep the processor busy.
_LIBRARIES = ThreadpoolController()

# Of the logarithm of each variance, as a part of the scores' variance: median and standard deviation. Broad,
# so that twenty trials overrule it; terms with more effects start smaller.
PRIORS: Mapping[str, tuple[float, float]] = {
    COST: (0.1, 1.5),
    SITE: (0.1, 1.5),
    TYPE: (0.1, 1.5),
    CELL: (0.1, 1.5),
    OPTION: (0.02, 1.5),
    PAIR: (0.01, 1.5),
    PLACEMENT: (0.01, 1.5),
    IN_BLOCK: (0.3, 1.5),
    NOISE: (0.5, 1.0),
}
PRIOR_OF_SETTINGS = (0.1, 1.5)
WIDE = 10.0  # variance of these two: the scores are centred in each block, so they are as good as unknown
UNKNOWN = (INTERCEPT, BLOCK)
LIMITS = (-9.0, 4.0)  # of a variance's logarithm
CURVE = 3  # cosines that a curve over a number is made of
OUTLIER = 4.0  # robust standard deviations below what is expected at which a score is cut off
CUTS = 3  # fits at most, each after the first without what the one before found too low
FEW = 8  # trials that are too few to tell what is too low, or whether the model predicts anything


class IndexedModule(NamedTuple):
    """One module. options: pairs of a name and a value."""

    site: int
    type: str
    options: tuple[tuple[str, Hashable], ...] = ()


class IndexedPlacement(NamedTuple):
    """Modules in ascending order of their sites. prefix: whose sites these are, such as of one backbone."""

    prefix: str
    modules: tuple[IndexedModule, ...]


class Effect(NamedTuple):
    """Names one effect: its term, and which one of that term."""

    term: str
    key: Hashable = ()


Weights = dict[Effect, float]


def placement_weights(placement: IndexedPlacement) -> Weights:
    """How often each effect stands in a placement's score."""
    found: defaultdict[Effect, float] = defaultdict(float)
    prefix, modules = placement
    found[Effect(INTERCEPT)] = 1.0
    for i, (site, kind, options) in enumerate(modules):
        found[Effect(COST)] += 1
        found[Effect(SITE, (prefix, site))] += 1
        found[Effect(TYPE, kind)] += 1
        found[Effect(CELL, (prefix, site, kind))] += 1
        for name, value in options:
            found[Effect(OPTION, (kind, name, value))] += 1
        for other in modules[:i]:
            found[Effect(PAIR, (prefix, other.site, site))] += 1
            found[Effect(PAIR, tuple(sorted((other.type, kind))))] += 1
    found[Effect(PLACEMENT, placement)] = 1.0
    return dict(found)


def block_weights(placement: IndexedPlacement, block: Hashable) -> Weights:
    """Of the effects that a block adds to a placement's score in it."""
    found = {Effect(BLOCK, block): 1.0}
    for module in placement.modules:
        found[Effect(IN_BLOCK, (block, placement.prefix, module.site, module.type))] = 1.0
    return found


def is_setting(effect: Effect) -> bool:
    """Whether an effect is a hyperparameter's."""
    return effect.term.startswith(SETTING)


def choice_weights(name: str, value: Hashable) -> Weights:
    """Of a hyperparameter that is one of several values."""
    return {Effect(SETTING + name, value): 1.0}


def curve_weights(name: str, x: float) -> Weights:
    """Of a hyperparameter that is a number, `x` of its range, 0 to 1: a smooth curve."""
    return {Effect(SETTING + name, k): float(np.cos(np.pi * k * x)) / k for k in range(1, CURVE + 1)}


class EffectModel:
    """The posterior of the effects, given trials.

    trials: the weights of each one's score. scores: the larger the better, one per trial, at least one.
    logs: of the variances of terms, to begin the estimation with, or, without `estimate`, to be taken as they
        are.
    centres: of each trial, the mean score of its block, or of all; predictions count from there.
    """

    def __init__(
        self,
        trials: Sequence[Weights],
        scores: Sequence[float] | Array,
        logs: Mapping[str, float] | None = None,
        *,
        estimate: bool = True,
    ) -> None:
        self.columns = {effect: i for i, effect in enumerate(dict.fromkeys(e for t in trials for e in t))}
        self._z = np.zeros((len(trials), len(self.columns)))
        for row, trial in zip(self._z, trials, strict=True):
            for effect, weight in trial.items():
                row[self.columns[effect]] = weight
        of_term: defaultdict[str, list[int]] = defaultdict(list)
        for effect, column in self.columns.items():
            of_term[effect.term].append(column)
        self._terms = [term for term in of_term if term not in UNKNOWN]
        kernels = {term: self._z[:, of] @ self._z[:, of].T for term, of in of_term.items()}
        self._kernels = [kernels[term] for term in self._terms]
        self._wide = WIDE * sum(kernels[term] for term in UNKNOWN if term in kernels)
        # The means of blocks are far apart beside what placements do; the scale is that of what they do.
        self._mates = kernels.get(BLOCK, np.ones((len(trials), len(trials))))
        given = np.array(scores, float)
        self.logs = dict(logs or {})
        self._estimates = estimate
        with _LIBRARIES.limit(limits=1, user_api="blas"):
            for _ in range(CUTS):
                self._fit(given)
                too_low = self._too_low()
                if not too_low.any():
                    break
                given += self.scale * too_low

    def _fit(self, scores: Array) -> None:
        self.centres = self._mates @ scores / self._mates.sum(axis=1)
        self.scale = float((scores - self.centres).std()) or 1.0
        self._y = (scores - self.centres) / self.scale
        if self._estimates:
            self.logs = self._estimate(self.logs)
        self.logs = {
            name: self.logs.get(name, float(np.log(_prior(name)[0]))) for name in [*self._terms, NOISE]
        }
        self._variances = np.array([self.variance(effect.term) for effect in self.columns])
        noise = np.exp(self.logs[NOISE])
        self._zv = self._z * self._variances  # (trials, effects)
        self._factor = cho_factor(self._zv @ self._z.T + noise * np.eye(len(scores)), lower=True)
        self._solved = cho_solve(self._factor, self._y)
        self.mean = self._zv.T @ self._solved  # of each effect, in units of the scale

    @property
    def has_blocks(self) -> bool:
        """Whether trials have blocks, whose scores cannot be compared as they are."""
        return any(effect.term == BLOCK for effect in self.columns)

    def predicts(self) -> bool:
        """Return whether it predicts scores that were left out better than the mean of the others does.

        Each trial is left out in turn, with the variances estimated from all. False for fewer than `FEW`
        trials.
        """
        count = len(self._y)
        if count < FEW:
            return False
        of_mean = (self._y - self._y.mean()) * count / (count - 1)
        return bool(np.square(self._left_out()[0]).sum() < np.square(of_mean).sum())

    def _left_out(self) -> tuple[Array, Array]:
        """Return each score less what the others predict of it, and the variance of that.

        Source: Rasmussen and Williams (2006), equation 5.12.
        """
        precision = np.diag(cho_solve(self._factor, np.eye(len(self._y))))
        return self._solved / precision, 1 / precision

    def _too_low(self) -> Array:
        """By how much each trial is below `OUTLIER` deviations from what the others predict of it; 0 of most.

        A training that went wrong says that it is bad, not how bad: as it is, it would pass for the noise of
        all.
        """
        if len(self._y) < FEW:
            return np.zeros_like(self._y)
        errors, variances = self._left_out()
        off = errors / np.sqrt(variances)  # in standard deviations
        usual = 1.4826 * np.median(np.abs(off))
        found: Array = np.maximum(-OUTLIER * usual - off, 0) * np.sqrt(variances)
        return found

    def variance(self, term: str) -> float:
        """Of the effects of a term, as a part of the scores' variance."""
        if term in UNKNOWN:
            return WIDE
        return float(np.exp(self.logs[term])) if term in self.logs else _prior(term)[0]

    @property
    def noise(self) -> float:
        """Standard deviation of one trial's score, in units of the score."""
        return self.scale * float(np.exp(self.logs[NOISE] / 2))

    @property
    def scores(self) -> Array:
        """Those it was fitted to, cut off where they are too low."""
        found: Array = self.centres + self.scale * self._y
        return found

    def count(self, effect: Effect) -> int:
        """How many trials have an effect in their score."""
        return int(np.count_nonzero(self._z[:, self.columns[effect]])) if effect in self.columns else 0

    def _estimate(self, start: Mapping[str, float]) -> dict[str, float]:
        """The logarithms of the variances that maximise the marginal likelihood times their prior."""
        names = [*self._terms, NOISE]
        begin = np.clip([start.get(name, np.log(_prior(name)[0])) for name in names], *LIMITS)
        found = minimize(
            self._loss,
            begin,
            jac=True,
            method="L-BFGS-B",
            bounds=[LIMITS] * len(names),
            options={"maxiter": 30},
        )
        return {name: float(log) for name, log in zip(names, found.x, strict=True)}

    def _loss(self, logs: Array) -> tuple[float, Array]:
        """Minus the logarithm of the density of scores and variances, but for a constant, and its gradient.

        logs: of the variance of each term, and of the noise as the last one.
        """
        size = len(self._y)
        eye = np.eye(size)
        kernels = [*self._kernels, eye]
        variances = np.exp(logs)
        total = self._wide + 1e-9 * eye
        total += sum(variance * kernel for variance, kernel in zip(variances, kernels, strict=True))
        factor = cho_factor(total, lower=True)
        inverse = cho_solve(factor, eye)
        alpha = inverse @ self._y
        inner = np.outer(alpha, alpha) - inverse
        gradient = -0.5 * variances * np.array([np.sum(inner * kernel) for kernel in kernels])
        priors = [_prior(name) for name in [*self._terms, NOISE]]
        spreads = np.array([spread for _, spread in priors])
        off = (logs - np.log([median for median, _ in priors])) / spreads
        value = (
            0.5 * self._y @ alpha + np.log(np.diag(factor[0])).sum() + 0.5 * off @ off + np.log(spreads).sum()
        )
        return float(value), gradient + off / spreads

    def evidence(self) -> float:
        """The logarithm of the density of the scores, variances integrated out (Laplace's approximation).

        Differences between models of the same scores tell how much more probable one makes them.
        """
        logs = np.array([self.logs[name] for name in [*self._terms, NOISE]])
        step = 1e-3
        with _LIBRARIES.limit(limits=1, user_api="blas"):
            curvature = np.array(
                [
                    (self._loss(logs + step * one)[1] - self._loss(logs - step * one)[1]) / (2 * step)
                    for one in np.eye(len(logs))
                ]
            )
        _, volume = np.linalg.slogdet((curvature + curvature.T) / 2)
        return -self._loss(logs)[0] - 0.5 * float(volume)

    def draw(self, random: np.random.Generator) -> "EffectDraw":
        """All effects, once, from the posterior: a draw of the prior, corrected by how wrong it is."""
        prior = random.standard_normal(len(self.columns)) * np.sqrt(self._variances)
        noise = random.standard_normal(len(self._y)) * np.exp(self.logs[NOISE] / 2)
        wrong = self._y - self._z @ prior - noise
        return EffectDraw(self, prior + self._zv.T @ cho_solve(self._factor, wrong), random)

    def predict(self, wanted: Sequence[Weights]) -> tuple[Array, Array]:
        """Means and covariance of sums of effects, such as of placements' scores, in units of the score.

        An intercept counts from the centre of the scores, or of a block's. Effects that no
        trial has are 0, with the variance of their term.
        """
        new = [effect for effect in dict.fromkeys(e for w in wanted for e in w) if effect not in self.columns]
        columns = {**self.columns, **{effect: len(self.columns) + i for i, effect in enumerate(new)}}
        z = np.zeros((len(wanted), len(columns)))
        for row, one in zip(z, wanted, strict=True):
            for effect, weight in one.items():
                row[columns[effect]] = weight
        known = z[:, : len(self.columns)]
        prior = (z * np.array([self.variance(effect.term) for effect in columns])) @ z.T
        shared = known @ self._zv.T  # (wanted, trials)
        covariance = prior - shared @ cho_solve(self._factor, shared.T)
        return self.scale * (known @ self.mean), self.scale**2 * (covariance + covariance.T) / 2


class EffectDraw:
    """Effects as one draw has them. Those that no trial has are drawn from their prior when asked for."""

    def __init__(self, model: EffectModel | None, values: Array, random: np.random.Generator) -> None:
        self._model, self._values, self._random = model, values, random
        self._new: dict[Effect, float] = {}

    def __call__(self, effect: Effect) -> float:
        if self._model is not None and effect in self._model.columns:
            return float(self._values[self._model.columns[effect]])
        if effect not in self._new:
            variance = self._model.variance(effect.term) if self._model else _prior(effect.term)[0]
            self._new[effect] = float(self._random.standard_normal() * np.sqrt(variance))
        return self._new[effect]

    def total(self, placement: IndexedPlacement) -> float:
        """A placement's score, from the intercept on."""
        return sum(w * self(e) for e, w in placement_weights(placement).items() if e.term != INTERCEPT)


def _prior(term: str) -> tuple[float, float]:
    return PRIORS.get(term, PRIOR_OF_SETTINGS)

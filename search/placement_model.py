"""A hierarchical Gaussian model of the effects of placements on the score.

    score = intercept + sum over modules (cost + site + type + site x type + options)
            + sum over pairs of modules (sites + types) + placement + settings
            + coefficient x prediction of the prior + noise

Thousands of placements share a few dozen effects, so a trial informs about all placements with a common
module. Each term is Gaussian with mean 0 and its own variance. `placement` is the remainder of one placement
that the other terms do not explain. Trials that repeat a placement separate it from noise. `settings` are the
hyperparameters: an effect of each choice, and a smooth curve for numbers.

Variances are estimated from the scores by empirical Bayes: they maximise the marginal likelihood with a broad
prior, which keeps them stable for few trials.

Effects that were measured before the first trial (`search.placement_effects`) give a prior mean, times a
coefficient. It has a Gaussian prior with mean 1/2, and falls to 0 if the scores disagree.

Sources: the factorial screening of arXiv 1510.05248; D. V. Lindley, A. F. M. Smith, Bayes estimates for the
linear model (1972), for the hierarchy; C. E. Rasmussen, C. K. I. Williams, Gaussian processes for machine
learning (2006), sections 5.4 and A.3, for the marginal likelihood and its gradient; J. T. Wilson et al.
(2020), arXiv 2002.09309, equation 12, for draws from the posterior.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import cast

import numpy as np
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.optimize import minimize
from scipy.sparse import csr_array
from threadpoolctl import ThreadpoolController

from search.placement_effects import (
    NO_PRIOR,
    NOISE,
    Array,
    Effect,
    IndexedPlacement,
    Matrix,
    Prior,
    Term,
    Weights,
    add_coefficient,
    is_setting,
    make_matrix,
    prior_mean,
    prior_of,
    total_weights,
)

# With several threads, matrices this small take ten times as long while trials use the processor.
_LIBRARIES = ThreadpoolController()

WIDE = 10.0  # variance of the intercept, which is practically unknown
LIMITS = (-9.0, 4.0)  # bounds of a variance's logarithm
FLATTEST = 0.3  # smallest curvature by the logarithms of variances; the priors alone have 0.4 to 1
OUTLIER = 4.0  # robust standard deviations below the prediction at which a score is cut off
CUTS = 3  # largest number of fits; each one cuts off scores that the previous fit found too low
FEW = 8  # with fewer trials, scores are not cut off and the model counts as not predictive


class Likelihood:
    """The likelihood of scores y = Z e + noise with Gaussian effects e.

    Their covariance K = Z V Z' + noise, where V holds the variances of the effects, is not factored, but a
    matrix over the effects (Woodbury's identity). Effects that each occur in trials of their own, such as the
    remainders of placements, would make that matrix as large as K. They join the noise: it is then diagonal,
    too, in the means of the trials of a placement and the deviations from these means.

    A level consists of the placements with the same number of trials. Level 0 holds the deviations from the
    means of placements. Scores have one variance in each level, apart from the effects that placements share.

    Args:
        z: The weights of the effects in each trial's score, `(trials, effects)`.
        terms: The columns of each term.
        own: The term of which each trial has at most one effect, with weight 1.
    """

    def __init__(self, z: Matrix, terms: Mapping[str, Sequence[int]], own: str) -> None:
        self._names = list(terms)
        shared = {name: columns for name, columns in terms.items() if name != own}
        self._columns = [column for columns in shared.values() for column in columns]
        self._term = np.repeat(  # the index of each column's term
            [self._names.index(name) for name in shared], [len(columns) for columns in shared.values()]
        )
        self._own = self._names.index(own) if own in terms else None
        self._x = z[:, self._columns].toarray()  # (trials, shared effects)
        self._member = z[:, terms.get(own, [])]  # (trials, placements)
        self._sizes = self._member.sum(axis=0)
        sums = self._member.T @ self._x
        counts = np.unique(self._sizes)
        self._levels = np.array([0.0, *counts])
        # The means of placements, scaled such that trials and means have the same variance without effects.
        self._means = [(self._sizes == count, count**-0.5) for count in counts]
        between = [(scale * sums[rows]).T @ (scale * sums[rows]) for rows, scale in self._means]
        self._squares = np.array([self._x.T @ self._x - sum(between), *between])  # (levels, effects, effects)
        ranks = [int(rows.sum()) for rows, _ in self._means]
        self._ranks = np.array([z.shape[0] - sum(ranks), *ranks])
        self._sums = sums

    def _inner(self, variances: Array, noise: float) -> tuple[Array, Array, tuple[Array, bool]]:
        """Return each level's variance, the root of each effect's, and the factor of the inner matrix."""
        levels = noise + self._levels * (0.0 if self._own is None else variances[self._own])
        roots = np.sqrt(variances[self._term])
        inner = roots[:, None] * np.tensordot(1 / levels, self._squares, 1) * roots
        return levels, roots, cho_factor(inner + np.eye(len(roots)), lower=True)

    def loss(self, y: Array, variances: Array, noise: float) -> tuple[float, Array]:
        """Return the negative log density of `y`, and its gradient by the log variances, the noise's last.

        `variances` are those of the terms, in order.
        """
        levels, roots, factor = self._inner(variances, noise)
        sums = self._member.T @ y
        between = [
            (scale**2 * self._sums[rows].T @ sums[rows], scale**2 * sums[rows] @ sums[rows])
            for rows, scale in self._means
        ]
        products = np.array([self._x.T @ y - sum(xy for xy, _ in between), *(xy for xy, _ in between)])
        squares = np.array([y @ y - sum(yy for _, yy in between), *(yy for _, yy in between)])
        inverse = cho_solve(factor, np.eye(len(roots)))
        standard = inverse @ (roots * (products.T @ (1 / levels)))  # effects by their standard deviations
        effects = roots * standard
        residuals = squares - 2 * products @ effects + self._squares @ effects @ effects
        covariance = roots[:, None] * inverse * roots
        traces = np.tensordot(self._squares, covariance, 2)
        value = 0.5 * (residuals @ (1 / levels) + standard @ standard + self._ranks @ np.log(levels))
        by_level = 0.5 * (self._ranks / levels - (traces + residuals) / levels**2)
        gradient = np.zeros(len(variances) + 1)
        np.add.at(gradient, self._term, 0.5 * (1 - np.diag(inverse) - standard**2))
        if self._own is not None:
            gradient[self._own] = variances[self._own] * self._levels @ by_level
        gradient[-1] = noise * by_level.sum()
        return float(value + np.log(np.diag(factor[0])).sum()), gradient

    def factor(self, variances: Array, noise: float) -> None:
        """Prepare `solve` and `precisions` for these variances."""
        own = 0.0 if self._own is None else variances[self._own]
        _, roots, self._factor = self._inner(variances, noise)
        self._noise, self._shrinkage = noise, own / (noise + own * self._sizes)
        self._scaled = self._x * roots
        self._whitened = self._unmix(self._scaled)

    def _unmix(self, values: Array) -> Array:
        """Return the inverse of the covariance without shared effects, times `values`."""
        sums = self._member.T @ values
        result: Array = (values - self._member @ (self._shrinkage * sums.T).T) / self._noise
        return result

    def solve(self, values: Array) -> Array:
        """Return the inverse of the covariance times `values`, `(trials,)` or `(trials, columns)`."""
        unmixed = self._unmix(values)
        result: Array = unmixed - self._whitened @ cho_solve(self._factor, self._scaled.T @ unmixed)
        return result

    def precisions(self) -> Array:
        """Return the diagonal of the inverse of the covariance."""
        half = solve_triangular(self._factor[0], self._whitened.T, lower=True)
        return np.asarray((1 - self._member @ self._shrinkage) / self._noise - np.square(half).sum(axis=0))


class EffectModel:
    """Posterior of the effects, given trials.

    Args:
        trials: The weights of the effects in each trial's score.
        scores: The scores, at least one. Larger is better.
        logs: Logarithms of the variances of terms, from which their estimation starts.
        estimate: If False, `logs` are used without estimation.
        prior: Effects that were measured before, in units of the standard deviation of scores.

    Attributes:
        logs: The logarithms of the variances of terms.
        centre: The mean score of all trials. Predictions count from there.
        scale: The standard deviation of the centred scores.
        mean: The posterior mean of each effect beyond the predictions of the prior, and of its coefficient,
            in units of the scale.
    """

    def __init__(
        self,
        trials: Sequence[Weights],
        scores: Sequence[float] | Array,
        logs: Mapping[str, float] | None = None,
        *,
        estimate: bool = True,
        prior: Prior = NO_PRIOR,
    ) -> None:
        self.prior = prior
        trials = add_coefficient(trials, prior)
        self.columns = {effect: i for i, effect in enumerate(dict.fromkeys(e for t in trials for e in t))}
        self._names = list(self.columns)
        self._z = make_matrix(trials, self.columns)
        self._uses = np.bincount(self._z.indices, minlength=len(self.columns))
        columns_of_term: defaultdict[str, list[int]] = defaultdict(list)
        for effect, column in self.columns.items():
            columns_of_term[effect.term].append(column)
        self._means = np.array([prior_mean(effect.term) for effect in self.columns])
        self._offsets = self._z @ self._means
        self._terms = [term for term in columns_of_term if term != Term.INTERCEPT]
        unknown = [term for term in columns_of_term if term == Term.INTERCEPT]
        self._unknown = np.full(len(unknown), WIDE)
        self._likelihood = Likelihood(
            self._z, {term: columns_of_term[term] for term in [*self._terms, *unknown]}, Term.PLACEMENT
        )
        values = np.array(scores, float)
        self.logs = dict(logs or {})
        self._estimates = estimate
        with _LIBRARIES.limit(limits=1, user_api="blas"):
            for _ in range(CUTS):
                self._fit(values)
                too_low = self._too_low()
                if not too_low.any():
                    break
                values += self.scale * too_low

    def _fit(self, scores: Array) -> None:
        self.centre = float(scores.mean())
        self.scale = float(scores.std()) or 1.0
        self._y = (scores - self.centre) / self.scale
        if self._estimates:
            self.logs = self._estimate(self.logs)
        self.logs = {
            name: self.logs.get(name, float(np.log(prior_of(name)[0]))) for name in [*self._terms, NOISE]
        }
        self._condition()

    def _condition(self) -> None:
        """Compute the posterior of the effects, given `logs`."""
        self._variances = np.array([self.variance(effect.term) for effect in self.columns])
        variances = [*(np.exp(self.logs[name]) for name in self._terms), *self._unknown]
        self._likelihood.factor(np.array(variances), float(np.exp(self.logs[NOISE])))
        self._solved = self._likelihood.solve(self._y - self._offsets)
        self.mean = self._means + self._variances * (self._z.T @ self._solved)

    def predicts(self) -> bool:
        """Return True if the model predicts left-out scores better than the mean of the others does.

        Each trial is left out in turn, with the variances estimated from all. False for fewer than `FEW`
        trials.
        """
        count = len(self._y)
        if count < FEW:
            return False
        mean_errors = (self._y - self._y.mean()) * count / (count - 1)
        return bool(np.square(self._left_out()[0]).sum() < np.square(mean_errors).sum())

    def _left_out(self) -> tuple[Array, Array]:
        """Return each score's error and its variance, by the other trials (Rasmussen, Williams, eq. 5.12)."""
        precision = self._likelihood.precisions()
        return self._solved / precision, 1 / precision

    def _too_low(self) -> Array:
        """Return by how much each score is more than `OUTLIER` deviations below its prediction, mostly 0."""
        # A failed training shows that it is bad, but not how bad. Left as it is, its score would inflate the
        # noise of all trials.
        if len(self._y) < FEW:
            return np.zeros_like(self._y)
        errors, variances = self._left_out()
        deviations = errors / np.sqrt(variances)  # in standard deviations
        usual = 1.4826 * np.median(np.abs(deviations))
        result: Array = np.maximum(-OUTLIER * usual - deviations, 0) * np.sqrt(variances)
        return result

    def variance(self, term: str) -> float:
        """Return the variance of the effects of a term, relative to the variance of the scores."""
        if term == Term.INTERCEPT:
            return WIDE
        return float(np.exp(self.logs[term])) if term in self.logs else prior_of(term)[0]

    @property
    def noise(self) -> float:
        """Return the standard deviation of a trial's score, in units of the score."""
        return self.scale * float(np.exp(self.logs[NOISE] / 2))

    @property
    def scores(self) -> Array:
        """Return the scores that the model was fitted to, cut off where they are too low."""
        return np.asarray(self.centre + self.scale * self._y)

    def count(self, effect: Effect) -> int:
        """Return the number of trials with an effect in their score."""
        return int(self._uses[self.columns[effect]]) if effect in self.columns else 0

    def _estimate(self, start: Mapping[str, float]) -> dict[str, float]:
        """Return the logarithms of the variances that maximise marginal likelihood times prior."""
        names = [*self._terms, NOISE]
        initial = np.clip([start.get(name, np.log(prior_of(name)[0])) for name in names], *LIMITS)
        bounds = [LIMITS] * len(names)
        optimum = minimize(
            self._loss, initial, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 30}
        )
        return {name: float(log) for name, log in zip(names, optimum.x, strict=True)}

    def _loss(self, logs: Array) -> tuple[float, Array]:
        """Return the negative log density of scores and variances, up to a constant, and its gradient."""
        # `logs` holds the logarithm of the variance of each term, and of the noise last.
        variances = np.exp(logs)
        fit, slopes = self._likelihood.loss(
            self._y - self._offsets, np.array([*variances[:-1], *self._unknown]), variances[-1]
        )
        gradient = np.array([*slopes[: len(self._terms)], slopes[-1]])
        priors = [prior_of(name) for name in [*self._terms, NOISE]]
        spreads = np.array([spread for _, spread in priors])
        standardised = (logs - np.log([median for median, _ in priors])) / spreads
        value = fit + 0.5 * standardised @ standardised + np.log(spreads).sum()
        return float(value), gradient + standardised / spreads

    def evidence(self) -> float:
        """Return the log density of the scores, with variances integrated out (Laplace's approximation).

        Differences between models of the same scores are log Bayes factors.
        """
        logs = np.array([self.logs[name] for name in [*self._terms, NOISE]])
        steps = 1e-3 * np.eye(len(logs))
        with _LIBRARIES.limit(limits=1, user_api="blas"):
            changes = [self._loss(logs + step)[1] - self._loss(logs - step)[1] for step in steps]
        curvature = np.array(changes) / 2e-3
        eigenvalues = np.maximum(np.linalg.eigvalsh((curvature + curvature.T) / 2), FLATTEST)
        return -self._loss(logs)[0] - 0.5 * float(np.log(eigenvalues).sum())

    def draw(self, random: np.random.Generator) -> "EffectDraw":
        """Draw all effects from the posterior, by correcting a draw from the prior."""
        prior = self._means + random.standard_normal(len(self.columns)) * np.sqrt(self._variances)
        noise = random.standard_normal(len(self._y)) * np.exp(self.logs[NOISE] / 2)
        residuals = self._y - self._z @ prior - noise
        values = prior + self._variances * (self._z.T @ self._likelihood.solve(residuals))
        return EffectDraw(self, values, random)

    @cached_property
    def tried(self) -> tuple[list[IndexedPlacement], Matrix]:
        """Return the placements of the trials, and the weights of the effects in each one's total."""
        columns = {effect.key: i for effect, i in self.columns.items() if effect.term == Term.PLACEMENT}
        member = self._z[:, list(columns.values())].tocoo()
        trials = np.zeros(len(columns), int)
        trials[member.col] = member.row  # any trial of the placement
        kept = np.array([not (e.term == Term.INTERCEPT or is_setting(e)) for e in self.columns], float)
        # Of a single row, the product is no csr_array and `@` gives a number.
        return [cast(IndexedPlacement, key) for key in columns], csr_array(self._z * kept)[trials]

    def expect(self, sums: Sequence[Weights]) -> Array:
        """Return the means that `predict` returns."""
        sums = add_coefficient(sums, self.prior)
        known = [{e: weight for e, weight in effects.items() if e in self.columns} for effects in sums]
        return np.asarray(self.scale * (make_matrix(known, self.columns) @ self.mean))

    def predict(self, sums: Sequence[Weights]) -> tuple[Array, Array]:
        """Return means and covariance of sums of effects, such as placements' scores, in units of the score.

        An intercept counts from the centre of the scores. Effects without trials have mean 0 and the variance
        of their term, beyond the predictions of the prior.
        """
        sums = add_coefficient(sums, self.prior)
        columns = dict(self.columns)
        for effect in (effect for effects in sums for effect in effects):
            columns.setdefault(effect, len(columns))
        z = make_matrix(sums, columns)
        known = z[:, : len(self.columns)]
        prior = (z * np.array([self.variance(effect.term) for effect in columns])) @ z.T
        shared = (known * self._variances @ self._z.T).toarray()  # (sums, trials)
        covariance = prior.toarray() - shared @ self._likelihood.solve(shared.T)
        return self.scale * (known @ self.mean), self.scale**2 * (covariance + covariance.T) / 2


class EffectDraw:
    """One draw of all effects. Effects without trials are drawn from their prior when needed.

    Attributes:
        values: The draw of each effect of the model.
    """

    def __init__(
        self, model: EffectModel | None, values: Array, random: np.random.Generator, prior: Prior = NO_PRIOR
    ) -> None:
        self._model, self.values, self._random = model, values, random
        self._prior = prior if model is None else model.prior
        self._new: dict[Effect, float] = {}

    def __call__(self, effect: Effect) -> float:
        known = self._prior.get(effect)
        predicted = self._beyond(Effect(Term.COEFFICIENT)) * known if known else 0.0
        return self._beyond(effect) + predicted

    def _beyond(self, effect: Effect) -> float:
        """Return the value of an effect beyond the prediction of the prior."""
        if self._model is not None and effect in self._model.columns:
            return float(self.values[self._model.columns[effect]])
        if effect not in self._new:
            variance = self._model.variance(effect.term) if self._model else prior_of(effect.term)[0]
            drawn = float(self._random.standard_normal() * np.sqrt(variance))
            self._new[effect] = prior_mean(effect.term) + drawn
        return self._new[effect]

    def best_tried(self, is_allowed: Callable[[IndexedPlacement], bool]) -> list[IndexedPlacement]:
        """Return the best one of the allowed placements with trials, if there is any."""
        placements, weights = self._model.tried if self._model else ([], np.empty((0, 0)))
        order = np.argsort(-(weights @ self.values))
        return list(islice(filter(is_allowed, (placements[i] for i in order)), 1))

    def total(self, placement: IndexedPlacement, *, own: bool = True) -> float:
        """Return a placement's score, relative to the intercept, with its remainder if `own`."""
        return sum(weight * self(effect) for effect, weight in total_weights(placement, own=own).items())

"""A hierarchical Gaussian model of the effects of placements on the score.

    score = intercept + block + sum over modules (cost + site + type + site x type + options)
            + sum over pairs of modules (sites + types) + sum over modules (block x site x type)
            + placement + settings + coefficient x prediction of the prior + noise

Thousands of placements share a few dozen effects, so a trial informs about all placements with a common
module. Each term is Gaussian with mean 0 and its own variance. `placement` is the remainder of one placement
that the other terms do not explain. Trials that repeat a placement separate it from noise. `settings` are the
hyperparameters: an effect of each choice, and a smooth curve for numbers.

A `block` consists of the trials of one shared partial training. Modules have different effects in different
blocks, which `block x site x type` models: ten trials with a module in one block are not ten independent
observations. Its size on Imagenette is in docs/explanation/placement-sampler.md.

Variances are estimated from the scores by empirical Bayes: they maximise the marginal likelihood with a broad
prior, which keeps them stable for few trials.

Effects that were measured before the first trial (`search.placement_effects`) give a prior mean, times a
coefficient. It has a Gaussian prior with mean 1/2, and falls to 0 if the scores disagree.

Sources: the factorial screening of arXiv 1510.05248; D. V. Lindley, A. F. M. Smith, Bayes estimates for the
linear model (1972), for the hierarchy; C. E. Rasmussen, C. K. I. Williams, Gaussian processes for machine
learning (2006), section 5.4, for the marginal likelihood and its gradient; J. T. Wilson et al. (2020), arXiv
2002.09309, equation 12, for draws from the posterior.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property
from itertools import islice
from typing import cast

import numpy as np
from scipy.optimize import minimize
from scipy.sparse import csr_array
from threadpoolctl import ThreadpoolController

from search.placement_effects import (
    NO_PRIOR,
    NOISE,
    Effect,
    IndexedPlacement,
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
from search.score_likelihood import Array, Matrix, make_likelihood

# With several threads, matrices this small take ten times as long while trials use the processor.
_LIBRARIES = ThreadpoolController()

WIDE = 10.0  # variance of UNKNOWN terms: they are practically unknown, as scores are centred in each block
UNKNOWN = (Term.INTERCEPT, Term.BLOCK)
LIMITS = (-9.0, 4.0)  # bounds of a variance's logarithm
TAILS = 5  # degrees of freedom of Student's t
FLATTEST = 0.3  # smallest curvature by the logarithms of variances; the priors alone have 0.4 to 1
OUTLIER = 4.0  # robust standard deviations below the prediction at which a score is cut off
CUTS = 3  # largest number of fits; each one cuts off scores that the previous fit found too low
FEW = 8  # with fewer trials, scores are not cut off and the model counts as not predictive


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
        centres: For each trial, the mean score of its block, or of all trials. Predictions count from there.
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
        self._terms = [term for term in columns_of_term if term not in UNKNOWN]
        unknown = [term for term in columns_of_term if term in UNKNOWN]
        self._unknown = np.full(len(unknown), WIDE)
        self._likelihood = make_likelihood(
            self._z, {term: columns_of_term[term] for term in [*self._terms, *unknown]}, Term.PLACEMENT
        )
        # Blocks differ more than placements do, so scores are centred in each block before they are scaled.
        self._blocks = (
            self._z[:, columns_of_term[Term.BLOCK]] if self.has_blocks else np.ones((len(trials), 1))
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
        self.centres = self._blocks @ ((self._blocks.T @ scores) / self._blocks.sum(axis=0))
        self.scale = float((scores - self.centres).std()) or 1.0
        self._y = (scores - self.centres) / self.scale
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

    @property
    def has_blocks(self) -> bool:
        """Return True if trials have blocks. Their scores are then not comparable directly."""
        return any(effect.term == Term.BLOCK for effect in self.columns)

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
        if term in UNKNOWN:
            return WIDE
        return float(np.exp(self.logs[term])) if term in self.logs else prior_of(term)[0]

    @property
    def noise(self) -> float:
        """Return the standard deviation of a trial's score, in units of the score."""
        return self.scale * float(np.exp(self.logs[NOISE] / 2))

    @property
    def scores(self) -> Array:
        """Return the scores that the model was fitted to, cut off where they are too low."""
        result: Array = self.centres + self.scale * self._y
        return result

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

    def _curvature(self) -> tuple[Array, Array]:
        """Return the logarithms of the variances, and the curvature of `_loss` there."""
        logs = np.array([self.logs[name] for name in [*self._terms, NOISE]])
        steps = 1e-3 * np.eye(len(logs))
        with _LIBRARIES.limit(limits=1, user_api="blas"):
            changes = [self._loss(logs + step)[1] - self._loss(logs - step)[1] for step in steps]
        curvature = np.array(changes) / 2e-3
        return logs, (curvature + curvature.T) / 2

    def evidence(self) -> float:
        """Return the log density of the scores, with variances integrated out (Laplace's approximation).

        Differences between models of the same scores are log Bayes factors.
        """
        logs, curvature = self._curvature()
        eigenvalues = np.maximum(np.linalg.eigvalsh(curvature), FLATTEST)
        return -self._loss(logs)[0] - 0.5 * float(np.log(eigenvalues).sum())

    def vary(self, random: np.random.Generator, count: int) -> "Iterator[tuple[EffectModel, float]]":
        """Yield models with variances drawn from their posterior, and their weights, which sum to 1.

        Their logarithms are drawn from Student's t around Laplace's approximation, since the posterior has
        long tails. The weights correct for the difference (importance sampling).
        """
        logs, curvature = self._curvature()
        eigenvalues, vectors = np.linalg.eigh(curvature)
        deviations = 1 / np.sqrt(np.maximum(eigenvalues, FLATTEST))
        standard = random.standard_normal((count, len(logs)))
        standard *= np.sqrt(TAILS / random.chisquare(TAILS, (count, 1)))
        drawn = np.clip(logs + (standard * deviations) @ vectors.T, *LIMITS)
        distances = np.square((drawn - logs) @ vectors / deviations).sum(axis=1)
        with _LIBRARIES.limit(limits=1, user_api="blas"):
            losses = np.array([self._loss(row)[0] for row in drawn])
        densities = (TAILS + len(logs)) / 2 * np.log1p(distances / TAILS) - losses
        weights = np.exp(densities - densities.max())
        for row, weight in zip(drawn, (weights / weights.sum()).tolist(), strict=True):
            model = copy(self)
            model._likelihood = copy(self._likelihood)
            model.logs = dict(zip([*self._terms, NOISE], row.tolist(), strict=True))
            with _LIBRARIES.limit(limits=1, user_api="blas"):
                model._condition()
            yield model, weight

    def draw_values(self, random: np.random.Generator, count: int) -> Array:
        """Draw all effects from the posterior, `(effects, count)`, by correcting draws from the prior."""
        deviations = np.sqrt(self._variances)[:, None]
        prior = self._means[:, None] + random.standard_normal((len(self.columns), count)) * deviations
        noise = random.standard_normal((len(self._y), count)) * np.exp(self.logs[NOISE] / 2)
        residuals = self._y[:, None] - self._z @ prior - noise
        result: Array = prior + self._variances[:, None] * (self._z.T @ self._likelihood.solve(residuals))
        return result

    def draw(self, random: np.random.Generator) -> "EffectDraw":
        """Draw all effects from the posterior."""
        return EffectDraw(self, self.draw_values(random, 1)[:, 0], random)

    @cached_property
    def tried(self) -> tuple[list[IndexedPlacement], Matrix]:
        """Return the placements of the trials, and the weights of the effects in each one's total."""
        columns = {effect.key: i for effect, i in self.columns.items() if effect.term == Term.PLACEMENT}
        member = self._z[:, list(columns.values())].tocoo()
        trials = np.zeros(len(columns), int)
        trials[member.col] = member.row  # any trial of the placement
        totals = self.select(lambda e: not (e.term in (*UNKNOWN, Term.IN_BLOCK) or is_setting(e)))
        return [cast(IndexedPlacement, key) for key in columns], totals[trials]

    def placement_of(self, trial: int) -> IndexedPlacement:
        """Return the placement of a trial, by its index."""
        (column,) = [i for i in self._z[[trial]].indices if self._names[i].term == Term.PLACEMENT]
        return cast(IndexedPlacement, self._names[column].key)

    def select(self, is_kept: Callable[[Effect], bool]) -> Matrix:
        """Return the weights of some effects in each trial's score, `(trials, effects)`."""
        kept = np.array([is_kept(effect) for effect in self.columns], float)
        # Of a single row, the product is no csr_array and `@` gives a number.
        return csr_array(self._z * kept)

    def expect(self, sums: Sequence[Weights]) -> Array:
        """Return the means that `predict` returns."""
        sums = add_coefficient(sums, self.prior)
        known = [{e: weight for e, weight in effects.items() if e in self.columns} for effects in sums]
        result: Array = self.scale * (make_matrix(known, self.columns) @ self.mean)
        return result

    def predict(self, sums: Sequence[Weights]) -> tuple[Array, Array]:
        """Return means and covariance of sums of effects, such as placements' scores, in units of the score.

        An intercept counts from the centre of the scores, or of a block's scores. Effects without trials have
        mean 0 and the variance of their term, beyond the predictions of the prior.
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

"""The likelihood of scores that are sums of Gaussian effects and noise, in two forms with equal results.

The scores y = Z e + noise have the covariance K = Z V Z' + noise, where V holds the variances of the effects.
`ByTrials` factors K. `ByEffects` factors a matrix over the effects instead (Woodbury's identity), so it needs
few operations for many trials. Effects that each occur in trials of their own, such as the remainders of
placements, would make that matrix as large as K. They join the noise: it is then diagonal, too, in the means
of the trials of a placement and the deviations from these means.

Source: C. E. Rasmussen, C. K. I. Williams, Gaussian processes for machine learning (2006), sections 5.4.1 and
A.3.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, solve_triangular

Array = NDArray[np.float64]
Matrix = Any  # scipy.sparse.csr_array has no types


def make_likelihood(z: Matrix, terms: Mapping[str, Sequence[int]], own: str) -> "ByTrials | ByEffects":
    """Return the faster form, for the weights of the effects in each trial's score, `(trials, effects)`.

    `terms` are the columns of each term. Each trial has at most one effect of the term `own`, with weight 1.
    """
    shared = z.shape[1] - len(terms.get(own, ()))
    return ByEffects(z, terms, own) if z.shape[0] > shared else ByTrials(z, terms)


class ByTrials:
    """Likelihood by a matrix over trials. `variances` are those of the terms, in order."""

    def __init__(self, z: Matrix, terms: Mapping[str, Sequence[int]]) -> None:
        dense = z.toarray()
        self._kernels = [dense[:, columns] @ dense[:, columns].T for columns in terms.values()]
        self._kernels.append(np.eye(z.shape[0]))

    def _covariance(self, variances: Array, noise: float) -> Array:
        weighted = zip([*variances, noise], self._kernels, strict=True)
        result: Array = sum(variance * kernel for variance, kernel in weighted)
        return result

    def loss(self, y: Array, variances: Array, noise: float) -> tuple[float, Array]:
        """Return the negative log density of `y`, and its gradient by the log variances, the noise's last."""
        factor = cho_factor(self._covariance(variances, noise), lower=True)
        inverse = cho_solve(factor, self._kernels[-1])
        alpha = inverse @ y
        inner = np.outer(alpha, alpha) - inverse
        gradient = -0.5 * np.array([*variances, noise]) * [np.sum(inner * kernel) for kernel in self._kernels]
        return float(0.5 * y @ alpha + np.log(np.diag(factor[0])).sum()), gradient

    def factor(self, variances: Array, noise: float) -> None:
        """Prepare `solve` and `precisions` for these variances."""
        self._factor = cho_factor(self._covariance(variances, noise), lower=True)

    def solve(self, values: Array) -> Array:
        """Return the inverse of the covariance times `values`, `(trials,)` or `(trials, columns)`."""
        result: Array = cho_solve(self._factor, values)
        return result

    def precisions(self) -> Array:
        """Return the diagonal of the inverse of the covariance."""
        return np.diag(self.solve(self._kernels[-1]))


class ByEffects:
    """Likelihood by a matrix over effects, with the methods of `ByTrials`.

    A level consists of the placements with the same number of trials. Level 0 holds the deviations from the
    means of placements. Scores have one variance in each level, apart from the effects that placements share.
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
        unmixed = self._unmix(values)
        result: Array = unmixed - self._whitened @ cho_solve(self._factor, self._scaled.T @ unmixed)
        return result

    def precisions(self) -> Array:
        half = solve_triangular(self._factor[0], self._whitened.T, lower=True)
        result: Array = (1 - self._member @ self._shrinkage) / self._noise - np.square(half).sum(axis=0)
        return result

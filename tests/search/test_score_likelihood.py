"""The likelihood of scores equals the dense formula."""

from collections import defaultdict

import numpy as np
import pytest
from scipy.stats import multivariate_normal
from test_placement_model import some

from search.placement_effects import (
    Term,
    Weights,
    block_weights,
    curve_weights,
    make_matrix,
    placement_weights,
)
from search.placement_model import Likelihood

RANDOM = np.random.default_rng(0)
PLACED = some(40)
CASES: dict[str, list[Weights]] = {
    "placements": [placement_weights(placement) for placement in PLACED],
    "hyperparameters": [placement_weights(p) | curve_weights("rate", RANDOM.random()) for p in PLACED],
    "blocks": [placement_weights(p) | block_weights(p, i % 3) for i, p in enumerate(PLACED)],
    "some placements": [
        placement_weights(p) if i % 2 else curve_weights("rate", RANDOM.random())
        for i, p in enumerate(PLACED)
    ],
    "no placements": [curve_weights("rate", RANDOM.random()) for _ in PLACED],
}


@pytest.mark.parametrize("name", CASES)
def test_the_likelihood_is_that_of_a_dense_covariance(name: str) -> None:
    trials = CASES[name]
    columns = {effect: i for i, effect in enumerate(dict.fromkeys(e for t in trials for e in t))}
    terms: defaultdict[str, list[int]] = defaultdict(list)
    for effect, column in columns.items():
        terms[effect.term].append(column)
    z, y = make_matrix(trials, columns), RANDOM.normal(size=len(trials))
    kernels = [(part := z[:, list(of_term)].toarray()) @ part.T for of_term in terms.values()]
    likelihood = Likelihood(z, terms, Term.PLACEMENT)
    for _ in range(3):
        variances, noise = np.exp(RANDOM.normal(-2, 2, len(terms))), float(np.exp(RANDOM.normal(-1, 1)))
        weighted = [v * kernel for v, kernel in zip([*variances, noise], [*kernels, np.eye(40)], strict=True)]
        covariance, inverse = sum(weighted), np.linalg.inv(sum(weighted))
        density = multivariate_normal(np.zeros(40), covariance).logpdf(y)
        value, gradient = likelihood.loss(y, variances, noise)
        assert value == pytest.approx(-density - 20 * np.log(2 * np.pi), abs=1e-8)
        inner = np.outer(inverse @ y, inverse @ y) - inverse
        assert gradient == pytest.approx([-0.5 * np.sum(inner * kernel) for kernel in weighted], abs=1e-8)
        likelihood.factor(variances, noise)
        assert likelihood.solve(covariance) == pytest.approx(np.eye(40), abs=1e-8)
        assert likelihood.precisions() == pytest.approx(np.diag(inverse), abs=1e-8)

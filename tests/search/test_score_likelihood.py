"""Both forms of the likelihood of scores are equal."""

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
from search.score_likelihood import ByEffects, ByTrials, make_likelihood

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
def test_both_forms_of_the_likelihood_are_equal(name: str) -> None:
    trials = CASES[name]
    columns = {effect: i for i, effect in enumerate(dict.fromkeys(e for t in trials for e in t))}
    terms: defaultdict[str, list[int]] = defaultdict(list)
    for effect, column in columns.items():
        terms[effect.term].append(column)
    z, y = make_matrix(trials, columns), RANDOM.normal(size=len(trials))
    forms = ByTrials(z, terms), ByEffects(z, terms, Term.PLACEMENT)
    for _ in range(3):
        variances, noise = np.exp(RANDOM.normal(-2, 2, len(terms))), float(np.exp(RANDOM.normal(-1, 1)))
        (value, gradient), (other, other_gradient) = (form.loss(y, variances, noise) for form in forms)
        of_columns = np.array([dict(zip(terms, variances, strict=True))[effect.term] for effect in columns])
        covariance = (z * of_columns @ z.T).toarray() + noise * np.eye(len(y))
        density = multivariate_normal(np.zeros(len(y)), covariance).logpdf(y)
        assert value == pytest.approx(-density - 0.5 * len(y) * np.log(2 * np.pi), abs=1e-8)
        assert other == pytest.approx(value, abs=1e-8)
        assert other_gradient == pytest.approx(gradient, abs=1e-8)
        for form in forms:
            form.factor(variances, noise)
            assert form.solve(covariance) == pytest.approx(np.eye(len(y)), abs=1e-8)
            assert form.precisions() == pytest.approx(np.diag(np.linalg.inv(covariance)), abs=1e-8)
    assert isinstance(make_likelihood(z, terms, Term.PLACEMENT), ByEffects) == (name != "blocks")

"""The probability that more trials would not find a better configuration, against simulations."""

from collections import Counter
from itertools import combinations, product

import numpy as np
import pytest
from scipy.stats import chisquare, multivariate_normal, norm
from test_placement_model import TYPES, placement, scores, some

from search import reach
from search.placement_model import (
    BLOCK,
    NOISE,
    PLACEMENT,
    PRIORS,
    TYPE,
    Effect,
    EffectModel,
    IndexedPlacement,
    placement_weights,
    total_weights,
)
from search.placement_planner import PlacementChoices
from search.reach import estimate_reach

SITES = 3
CHOICES = PlacementChoices(prefix="", sites=SITES, types=TYPES, options={}, most=2)
MARGIN = 0.5


def every() -> list[IndexedPlacement]:
    """Return all placements of `CHOICES`, by the definition."""
    return [
        placement(*zip(sites, kinds, strict=True))
        for count in range(3)
        for sites in combinations(range(SITES), count)
        for kinds in product(TYPES, repeat=count)
    ]


def model_of(placements: list[IndexedPlacement], values: np.ndarray) -> EffectModel:
    return EffectModel([placement_weights(p) for p in placements], values)


def test_variances_are_drawn_from_their_posterior() -> None:
    """Against an integration over a grid."""
    random = np.random.default_rng(0)
    kinds = random.integers(8, size=20)
    values = random.standard_normal(8)[kinds] + 0.7 * random.standard_normal(20)
    model = EffectModel([{Effect(TYPE, int(kind)): 1.0} for kind in kinds], values)
    drawn = model.vary(random, 2000)
    assert sum(weight for _, weight in drawn) == pytest.approx(1)
    grid = np.linspace(-6, 4, 101)
    same = np.equal.outer(kinds, kinds)
    centred = (model.scores - model.centres) / model.scale
    density = np.zeros((101, 101))
    for (i, effect), (j, noise) in product(enumerate(grid), enumerate(grid)):
        covariance = np.exp(effect) * same + np.exp(noise) * np.eye(20)
        priors = [
            norm.logpdf(x, np.log(m), s) for x, (m, s) in ((effect, PRIORS[TYPE]), (noise, PRIORS[NOISE]))
        ]
        density[i, j] = multivariate_normal.logpdf(centred, cov=covariance) + sum(priors)
    density = np.exp(density - density.max())
    for term, axis in ((TYPE, 1), (NOISE, 0)):
        expected = np.average(grid, weights=density.sum(axis=axis))
        assert sum(w * m.logs[term] for m, w in drawn) == pytest.approx(expected, abs=0.06)


def test_it_equals_a_simulation_of_every_placement() -> None:
    placements = some(40)
    model = model_of(placements, scores(placements))
    random = np.random.default_rng(1)
    means = model.select(lambda effect: effect.term != BLOCK) @ model.mean
    best, tried = model.placement_of(int(np.argmax(means))), set(placements)
    none = 0.0
    for variant, weight in model.vary(random, 400):
        deviation = np.sqrt(variant.variance(PLACEMENT) / 3)  # Student's t with 3 degrees has variance 3
        for _ in range(5):
            draw = variant.draw(random)
            unseen = [
                sum(w * draw(effect) for effect, w in total_weights(p, own=False).items())
                + deviation * random.standard_t(3)
                for p in every()
                if p not in tried
            ]
            highest = max([*(draw.total(p) for p in tried), *unseen])
            none += weight / 5 * (highest <= draw.total(best) + MARGIN / model.scale)
    assert 0.2 < none < 0.98
    assert estimate_reach(model, [CHOICES], MARGIN, 1.0) == pytest.approx(none, abs=0.04)
    assert estimate_reach(model, [CHOICES], MARGIN, 0.0) == 1.0


def test_hundreds_of_unseen_remainders_are_not_one() -> None:
    """Placements have nothing in common. A tenth of them was tried four times each."""
    choices = PlacementChoices(prefix="", sites=12, types=TYPES, options={}, most=2)
    random = np.random.default_rng(0)
    pairs = [
        placement((i, a), (j, b)) for i, j in combinations(range(12), 2) for a, b in product(TYPES, TYPES)
    ]
    tried = [pairs[i] for i in random.permutation(len(pairs))[:60]]
    values = np.repeat(random.standard_normal(60), 4) + 0.1 * random.standard_normal(240)
    model = model_of([p for p in tried for _ in range(4)], values)
    assert estimate_reach(model, [choices], 0.1, 1.0) < 0.2


def test_all_placements_are_listed_or_a_sample_is_drawn_with_equal_probability() -> None:
    assert list(reach._all(CHOICES)) == every()
    assert sum(reach._numbers(CHOICES)) == len(every())
    counts = Counter(reach._sample(CHOICES, 4000, np.random.default_rng(0)))
    assert set(counts) == set(every())
    assert chisquare(list(counts.values())).pvalue > 1e-3


def test_the_best_placement_of_a_large_space_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two types are good, but no trial had both."""
    monkeypatch.setattr(reach, "LISTED", 3)
    random = np.random.default_rng(0)
    singles = [placement((site, kind)) for site, kind in product(range(SITES), TYPES)]
    placements = [placement(), *singles] * 6
    gains = np.array([sum(module.type in "ab" for module in p.modules) for p in placements])
    values = gains + 0.1 * random.standard_normal(len(placements))
    model = model_of(placements, values)
    assert estimate_reach(model, [CHOICES], MARGIN, 1.0) < 0.2


def test_nothing_is_left_to_find_without_modules() -> None:
    model = model_of([placement()] * 9, np.random.default_rng(0).standard_normal(9))
    assert estimate_reach(model, [], MARGIN, 1.0) == 1.0

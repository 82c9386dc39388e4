"""The probability that more trials would not find a better configuration, against simulations."""

from collections import Counter
from itertools import combinations, product

import numpy as np
import pytest
from scipy.stats import chisquare, multivariate_normal, norm
from test_placement_model import TYPES, placement, scores, some

from search import reach
from search.placement_effects import (
    NOISE,
    PRIORS,
    Effect,
    IndexedPlacement,
    Term,
    placement_weights,
    total_weights,
)
from search.placement_model import EffectModel
from search.placement_planner import PlacementChoices
from search.reach import estimate_reach

SITES = 3
CHOICES = PlacementChoices(prefix="", sites=SITES, types=TYPES, options={}, most=2)
MARGIN = 0.35


@pytest.fixture(autouse=True)
def _no_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "LEAST", 0.0)


def every() -> list[IndexedPlacement]:
    """Return all placements of `CHOICES`, by the definition."""
    return [
        placement(*zip(sites, kinds, strict=True))
        for count in range(3)
        for sites in combinations(range(SITES), count)
        for kinds in product(TYPES, repeat=count)
    ]


def estimate(
    model: EffectModel, choices: PlacementChoices, margin: float = MARGIN, more: int = 1000
) -> float:
    means = model.select(lambda effect: effect.term != Term.BLOCK) @ model.mean
    return estimate_reach(model, [choices], int(np.argmax(means)), more, margin, 1.0)


def model_of(placements: list[IndexedPlacement], values: np.ndarray) -> EffectModel:
    return EffectModel([placement_weights(p) for p in placements], values)


def test_variances_are_drawn_from_their_posterior() -> None:
    """Against an integration over a grid."""
    random = np.random.default_rng(0)
    kinds = random.integers(8, size=20)
    values = random.standard_normal(8)[kinds] + 0.7 * random.standard_normal(20)
    model = EffectModel([{Effect(Term.TYPE, int(kind)): 1.0} for kind in kinds], values)
    drawn = list(model.vary(random, 2000))
    assert sum(weight for _, weight in drawn) == pytest.approx(1)
    grid = np.linspace(-6, 4, 101)
    same = np.equal.outer(kinds, kinds)
    centred = (model.scores - model.centres) / model.scale
    density = np.zeros((101, 101))
    for (i, effect), (j, noise) in product(enumerate(grid), enumerate(grid)):
        covariance = np.exp(effect) * same + np.exp(noise) * np.eye(20)
        priors = [
            norm.logpdf(x, np.log(m), s)
            for x, (m, s) in ((effect, PRIORS[Term.TYPE]), (noise, PRIORS[NOISE]))
        ]
        density[i, j] = multivariate_normal.logpdf(centred, cov=covariance) + sum(priors)
    density = np.exp(density - density.max())
    for term, axis in ((Term.TYPE, 1), (NOISE, 0)):
        expected = np.average(grid, weights=density.sum(axis=axis))
        assert sum(w * m.logs[term] for m, w in drawn) == pytest.approx(expected, abs=0.06)


def test_it_equals_a_simulation_of_every_placement(monkeypatch: pytest.MonkeyPatch) -> None:
    placements = some(40)
    model = model_of(placements, scores(placements))
    random = np.random.default_rng(1)
    means = model.select(lambda effect: effect.term != Term.BLOCK) @ model.mean
    best, tried = model.placement_of(int(np.argmax(means))), set(placements)
    none = 0.0
    for variant, weight in model.vary(random, 400):
        deviation = np.sqrt(variant.variance(Term.PLACEMENT) / 3)  # Student's t with 3 degrees has variance 3
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
    assert 0.2 < none < 0.88
    assert estimate(model, CHOICES) == pytest.approx(none, abs=0.03)
    assert estimate(model, CHOICES, more=0) > estimate(model, CHOICES, more=1) > estimate(model, CHOICES)
    assert estimate_reach(model, [CHOICES], 0, 1000, MARGIN, 0.0) == 1.0
    monkeypatch.setattr(reach, "LEAST", 0.9)
    assert none - 0.03 < estimate(model, CHOICES) < 0.9, "a bound"


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
    assert estimate(model, choices, margin=0.1) < 0.2


def test_all_placements_are_listed_or_a_sample_is_drawn_with_equal_probability() -> None:
    assert list(reach.enumerate_placements(CHOICES)) == every()
    assert sum(reach.count_placements(CHOICES)) == len(every())
    counts = Counter(reach.sample_placements(CHOICES, 4000, np.random.default_rng(0)))
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
    assert estimate(model, CHOICES) < 0.2


def test_neighbours_differ_in_one_module() -> None:
    start = placement((0, "a"), (2, "b"))
    neighbours = set(reach.list_neighbours(CHOICES, start))
    assert neighbours == {
        p for p in every() if len(p.modules) == 2 and len({*p.modules} & {*start.modules}) >= 1
    }


def test_nothing_is_known_of_placements_that_no_trial_could_draw() -> None:
    model = model_of([placement()] * 9, np.random.default_rng(0).standard_normal(9))
    assert estimate_reach(model, [], 0, 100, MARGIN, 1.0) == 0.0
    only = PlacementChoices(prefix="", sites=1, types=TYPES, options={}, most=0)
    assert estimate_reach(model, [only], 0, 100, MARGIN, 1.0) == pytest.approx(1.0)

"""The solver against an enumeration of all placements."""

from collections.abc import Iterator
from itertools import combinations, product

import numpy as np
import pytest

from search.placement_effects import IndexedPlacement, Term, placement_weights
from search.placement_model import EffectModel
from search.placement_planner import PlacementChoices, list_modules
from search.solver import SLACK, AdditiveCost, PlacementSolver

TYPES = ("a", "b", "c")
OPTIONS = {"b": {"heads": (1, 2)}, "c": {"ks": (1, 3), "norm": ("x", "y")}}


def every(choices: PlacementChoices) -> Iterator[IndexedPlacement]:
    """Yield all placements of a space."""
    modules = list(list_modules(choices))
    for count in range(choices.least, choices.most + 1):
        for sites in combinations(range(choices.sites), count):
            for chosen in product(*([m for m in modules if m.site == site] for site in sites)):
                yield IndexedPlacement("p." if chosen else "", chosen)


def expected(model: EffectModel, placements: list[IndexedPlacement]) -> np.ndarray:
    sums = [{e: w for e, w in placement_weights(p).items() if e.term != Term.INTERCEPT} for p in placements]
    return model.expect(sums) / model.scale


@pytest.fixture(params=[1000, 0])
def few(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank all placements, or exchange modules only."""
    monkeypatch.setattr("search.solver.FEW", request.param)


@pytest.mark.usefixtures("few")
# Variances of a converged search: small for pairs, or as large as they can be, with strong own effects.
@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(("sites", "least", "most"), [(4, 0, 2), (3, 1, 3), (5, 2, 2), (3, 0, 1)])
def test_the_optimum_is_that_of_an_enumeration(sites: int, least: int, most: int, large: bool) -> None:
    choices = PlacementChoices(prefix="p.", sites=sites, types=TYPES, options=OPTIONS, most=most, least=least)
    placements = list(every(choices))
    for seed in range(2):
        random = np.random.default_rng([seed, sites, large])
        # Most trials repeat a few placements, which their own effects then make better or worse.
        few = random.choice(len(placements), 6)
        tried = [placements[i] for i in [*few, *few, *few, *random.choice(len(placements), 12)]]
        logs = {"pair": 2.0, "placement": 3.0} if large else None
        weights, scores = [placement_weights(p) for p in tried], random.standard_normal(len(tried))
        model = EffectModel(weights, scores, logs, estimate=not large)
        drawn = [{m: float(random.lognormal()) for m in list_modules(choices)} for _ in range(2)]
        names = ("params", "latency")
        costs = {name: AdditiveCost(plain=5.0, modules=m) for name, m in zip(names, drawn, strict=True)}
        solver, means = PlacementSolver(model, choices, tried, costs), expected(model, placements)
        values = {name: np.array([cost(p) for p in placements]) for name, cost in costs.items()}
        for _ in range(5):
            limits = {name: random.uniform(4.5, values[name].max()) for name in random.choice([*costs], 2)}
            feasible = np.all([values[name] <= limit for name, limit in limits.items()], axis=0)
            solved = solver.solve(limits)
            if solved is None:
                assert not feasible.any()
                continue
            index = placements.index(solved)
            assert feasible[index]
            assert means[index] >= means[feasible].max() - 2 * SLACK
            cheapest = solver.cheapest("params", {"latency": limits.get("latency", np.inf)})
            meets = values["latency"] <= limits.get("latency", np.inf)
            assert cheapest is not None
            assert costs["params"](cheapest) == pytest.approx(values["params"][meets].min())


def test_an_own_effect_below_zero_excludes_a_tried_placement() -> None:
    choices = PlacementChoices(prefix="", sites=2, types=("a", "b"), options={}, most=1)
    placements = [IndexedPlacement("", ())] + [IndexedPlacement("", (m,)) for m in list_modules(choices)]
    tried = [placements[1]] * 6 + [placements[2]] * 2
    weights, scores = [placement_weights(p) for p in tried], [-1.0] * 6 + [1.0] * 2
    model = EffectModel(weights, scores, {"placement": 4.0, "site": 4.0, "noise": -4.0}, estimate=False)
    means = expected(model, placements)
    assert PlacementSolver(model, choices, tried).solve() == placements[int(np.argmax(means))]


def test_a_limit_that_is_met_exactly_is_met() -> None:
    choices = PlacementChoices(prefix="", sites=2, types=("a",), options={}, most=2, least=2)
    first, second = list_modules(choices)
    both = IndexedPlacement("", (first, second))
    model = EffectModel([placement_weights(both)], [1.0])
    cost = AdditiveCost(plain=11_000_000, modules={first: 123_457, second: 7})
    solver = PlacementSolver(model, choices, [], {"params": cost})
    assert solver.solve({"params": cost(both)}) == both
    assert solver.solve({"params": cost(both) - 1}) is None

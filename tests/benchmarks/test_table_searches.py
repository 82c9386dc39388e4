"""Searches that benchmarks compare on tables of placements."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, takewhile
from pathlib import Path
from types import ModuleType

import numpy as np
import optuna
import pytest

METHODS = [
    "ours", "tpe", "tpe-group", "auto", "tpe-asha", "tpe-pasha", "stock", "gp",
    "random", "random-shrunk", "random-model",
]  # fmt: skip


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    level = optuna.logging.get_verbosity()
    yield
    optuna.logging.set_verbosity(level)


@pytest.mark.parametrize("name", METHODS)
def test_each_search_counts_trainings_and_returns_a_tried_placement(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bench_placements import METHODS as ALL
    from bench_placements import regret, regrets
    from planted import KINDS, Table

    assert list(ALL) == METHODS
    if name == "auto":
        pytest.importorskip("optunahub")
    table = Table(KINDS["light"], 3)
    steps = list(takewhile(lambda step: step[0] <= 12, ALL[name].search(table, 3)))
    costs = [spent for spent, _ in steps]
    assert all(later - before > 0 for before, later in pairwise(costs))
    assert (any(spent % 1 > 0.01 for spent in costs)) == ALL[name].early
    assert all(0 <= regret(table, params) < 10 for _, params in steps)
    monkeypatch.setitem(ALL, name, replace(ALL[name], most=12))
    values = regrets((name, "light", 3))
    assert len(values) == 3, "after 4, 8 and 12 trainings"
    assert np.isfinite(values).all()


def test_score_grows_with_the_fraction_of_a_training() -> None:
    from planted import KINDS, NOISE, Table

    from search.placement_effects import IndexedModule, IndexedPlacement

    table = Table(KINDS["light"], 0)
    placement = IndexedPlacement("", (IndexedModule(1, "ssa"),))
    trainings = [table.train(placement, {}) for _ in range(4000)]
    third, whole = (np.array([score(fraction) for score in trainings]) for fraction in (1 / 3, 1.0))
    effect = table.effect(placement)
    assert third.mean() == pytest.approx(effect / 3, abs=0.08)
    assert whole.mean() == pytest.approx(effect, abs=0.08)
    assert third.std() == pytest.approx(NOISE, rel=0.05)
    assert whole.std() == pytest.approx(NOISE, rel=0.05)
    assert np.corrcoef(third, whole)[0, 1] == pytest.approx(1 / 3, abs=0.05)


def test_pasha_trains_longer_only_when_rungs_disagree() -> None:
    from pasha import Pasha

    def search(*curves: tuple[float, ...]) -> Pasha:
        pasha = Pasha((1, 3, 9))
        for curve in curves:
            pasha.curves.append(list(curve))
            pasha.update(len(pasha.curves) - 1)
        return pasha

    agreeing = search((1.0, 2.0, 3.0), (2.0, 3.0, 4.0), (0.5,), (0.0,), (0.0,))
    assert (agreeing.top, agreeing.best()) == (1, 1)
    assert agreeing.choose() == 5, "a third of the rung is one training, which was resumed"
    agreeing.curves[5].append(4.0)
    assert (agreeing.choose(), agreeing.target(5)) == (5, 3)
    disagreeing = search((1.0, 2.0, 3.0), (2.0, 2.5, 2.5), (0.0, 0.0, 0.0))
    assert (disagreeing.top, disagreeing.choose(), disagreeing.target(0)) == (2, 0, 9)
    # The first two cross and cross back, so a difference of 0.3 may be noise.
    tolerant = search((1.0, 1.0, 1.3), (0.9, 1.2, 1.0), (0.0, 0.0, 0.9), (0.2, 0.1, 0.8))
    assert tolerant.top == 1


BENCH = "bench_fidelity"


def make_scores(correlation: float, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Return scores (placements, seeds) from scratch and of branches with this correlation of effects.

    Both share some noise of a seed, as from the plain training that both are compared with.
    """
    draw, count, seeds = np.random.default_rng(1), 400, 6
    first, other = draw.normal(size=(2, count))
    effects = first, correlation * first + np.sqrt(1 - correlation**2) * other
    common = draw.normal(size=(count, seeds))  # by placement and seed
    a, b = (effect[:, None] + noise * (common + draw.normal(size=(count, seeds))) for effect in effects)
    return a + draw.normal(size=seeds), b + draw.normal(size=seeds)


@pytest.mark.parametrize("correlation", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("noise", [0.1, 1.5])
def test_fidelity_is_the_correlation_of_true_effects(
    bench: ModuleType, correlation: float, noise: float
) -> None:
    scratch, branch = (bench.Table(scores, np.arange(6)) for scores in make_scores(correlation, noise))
    assert bench.fidelity(scratch, branch) == pytest.approx(correlation, abs=0.2)
    fewer = scratch.select(np.arange(400), np.arange(1, 6))
    assert bench.fidelity(fewer, branch) == pytest.approx(correlation, abs=0.25), "of other seeds"
    low, high = bench.interval(*(table.select(np.arange(100), np.arange(6)) for table in (scratch, branch)))[
        :2
    ]
    assert low - 0.05 <= correlation <= high + 0.05


def test_fidelity_is_nan_without_effects(bench: ModuleType) -> None:
    table = bench.Table(np.array([[1.0, -1.0], [-1.0, 1.0], [0.0, 0.0]]), np.arange(2))
    assert np.isnan(bench.fidelity(table, table))


@pytest.mark.parametrize(("common", "in_block"), [(1.0, 0.0), (0.0, 1.0)])
def test_effects_of_all_seeds_and_of_one_seed_are_separated(
    bench: ModuleType, common: float, in_block: float
) -> None:
    """The effect of a single module is also in its pairs."""
    draw, seeds = np.random.default_rng(2), 5
    cells = {
        name: common * draw.normal() + in_block * draw.normal(size=seeds) for name in bench.nette.singles()
    }
    names = [*bench.nette.singles(), *bench.nette.pairs()]
    scores = np.array([sum(cells[module] for module in name.split(" + ")) for name in names])
    fractions = bench.variance_fractions(
        bench.Table(scores + 0.3 * draw.normal(size=(len(names), seeds)), np.arange(seeds))
    )
    assert sum(fractions[name] for name in ("worth", "in_block", "noise")) == pytest.approx(1)
    assert fractions["worth" if common else "in_block"] > 0.7
    assert fractions["noise"] == pytest.approx(0.06, abs=0.05)
    assert (fractions["evidence"] > 10) == bool(in_block)

"""The fidelity of branches: a correlation corrected for noise."""

from types import ModuleType

import numpy as np
import pytest

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

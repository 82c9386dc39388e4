"""The fidelity of branches: what is left of a correlation when noise has been taken out."""

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
    import bench_fidelity

    return bench_fidelity


def made_up(correlation: float, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Scores of placements by seed, from scratch and of branches, whose true effects correlate so much.

    Seeds share noise between both, as a plain training that both are compared with does.
    """
    draw, count, seeds = np.random.default_rng(1), 400, 6
    first, other = draw.normal(size=(2, count))
    effects = first, correlation * first + np.sqrt(1 - correlation**2) * other
    common = draw.normal(size=(count, seeds))  # of one placement and seed
    one, two = (effect[:, None] + noise * (common + draw.normal(size=(count, seeds))) for effect in effects)
    return one + draw.normal(size=seeds), two + draw.normal(size=seeds)


@pytest.mark.parametrize("correlation", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("noise", [0.1, 1.5])
def test_it_is_the_correlation_of_the_true_effects(
    bench: ModuleType, correlation: float, noise: float
) -> None:
    scratch, branch = (bench.Table(scores, np.arange(6)) for scores in made_up(correlation, noise))
    assert bench.fidelity(scratch, branch) == pytest.approx(correlation, abs=0.2)
    fewer = scratch.part(np.arange(400), np.arange(1, 6))
    assert bench.fidelity(fewer, branch) == pytest.approx(correlation, abs=0.25), "of other seeds"
    low, high = bench.interval(*(table.part(np.arange(100), np.arange(6)) for table in (scratch, branch)))[:2]
    assert low - 0.05 <= correlation <= high + 0.05


def test_noise_alone_has_none(bench: ModuleType) -> None:
    """Where the scores of seeds do not agree there is nothing to be faithful to."""
    table = bench.Table(np.array([[1.0, -1.0], [-1.0, 1.0], [0.0, 0.0]]), np.arange(2))
    assert np.isnan(bench.fidelity(table, table))


@pytest.mark.parametrize(("worth", "in_block"), [(1.0, 0.0), (0.0, 1.0)])
def test_what_seeds_share_is_told_from_what_one_does(
    bench: ModuleType, worth: float, in_block: float
) -> None:
    """Effects of single modules are in the pairs with them, too: of all seeds, or of each another one."""
    draw, seeds = np.random.default_rng(2), 5
    cells = {
        name: worth * draw.normal() + in_block * draw.normal(size=seeds) for name in bench.nette.singles()
    }
    names = [*bench.nette.singles(), *bench.nette.pairs()]
    scores = np.array([sum(cells[part] for part in name.split(" + ")) for name in names])
    found = bench.shares(bench.Table(scores + 0.3 * draw.normal(size=(len(names), seeds)), np.arange(seeds)))
    assert sum(found[part] for part in ("worth", "in_block", "noise")) == pytest.approx(1)
    assert found["worth" if worth else "in_block"] > 0.7
    assert found["noise"] == pytest.approx(0.06, abs=0.05)
    assert (found["evidence"] > 10) == bool(in_block)

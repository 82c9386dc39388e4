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
    scratch, branch = made_up(correlation, noise)
    assert bench.fidelity(scratch, branch, np.arange(6)) == pytest.approx(correlation, abs=0.2)
    low, high = bench.interval(scratch[:100], branch[:100])[:2]
    assert low - 0.05 <= correlation <= high + 0.05


def test_noise_alone_has_none(bench: ModuleType) -> None:
    """Where the scores of seeds do not agree there is nothing to be faithful to."""
    values = np.array([[1.0, -1.0], [-1.0, 1.0], [0.0, 0.0]])
    assert np.isnan(bench.fidelity(values, values, np.arange(2)))

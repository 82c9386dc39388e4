"""The trimmed mean against SciPy's, its level, and a disturbed value."""

import numpy as np
import pytest
from scipy import stats

from automl.costs.trimmed_mean import LEAST, TRIMMED, trimmed_mean


@pytest.mark.parametrize("count", [8, 9, 10, 14, 15, 40])
def test_it_equals_scipys(count: int) -> None:
    values = np.random.default_rng(count).gumbel(3, 2, count)
    limits = 2 * (max(1, int(TRIMMED * count)) / count + 1e-9,)
    low, high = stats.mstats.trimmed_mean_ci(values, limits)
    expected = float(stats.mstats.trimmed_mean(values, limits)), float(low), float(high)
    assert trimmed_mean(values.tolist()) == pytest.approx(expected)


@pytest.mark.parametrize("count", [LEAST, 12, 20, 60])
def test_the_interval_has_its_level(count: int) -> None:
    random, hits = np.random.default_rng(count), 0
    for _ in range(2000):
        _, low, high = trimmed_mean(random.normal(1, 2, count).tolist())
        hits += low < 1 < high
    assert 0.92 < hits / 2000 < 0.98


@pytest.mark.parametrize("disturbed", [10.0, -10.0, 1e9])
def test_one_disturbed_value_hardly_moves_it(disturbed: float) -> None:
    values = [0.1, -0.12, 0.04, -0.06, 0.09, -0.03, 0.0]
    mean, low, high = trimmed_mean([*values, disturbed])
    assert abs(mean) < 0.05
    assert high - low < 0.4

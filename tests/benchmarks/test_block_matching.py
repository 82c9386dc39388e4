"""Block matching, the baseline of learned disparities."""

from types import ModuleType

import numpy as np
import pytest

BENCH = "block_matching"


@pytest.mark.parametrize("window", [1, 3, 5, 9])
def test_box_sums_equal_sums_over_windows(bench: ModuleType, window: int) -> None:
    values = np.random.default_rng(0).normal(size=(6, 8))
    sums, half = bench.box_sums(values, window), window // 2
    for y, x in np.ndindex(6, 8):
        inside = values[max(0, y - half) : y + half + 1, max(0, x - half) : x + half + 1]
        assert sums[y, x] == pytest.approx(inside.sum(), abs=1e-10)


def test_shift_of_an_image_is_its_disparity(bench: ModuleType) -> None:
    scene = np.random.default_rng(1).integers(0, 256, (12, 40, 3), dtype=np.uint8)
    left, right = scene[:, :32], scene[:, 5:37]
    disparities = bench.match_blocks(left, right, 16, 3)
    assert (disparities[:, 6:] == 5).all()


def test_disparities_stay_inside_the_image(bench: ModuleType) -> None:
    left, right = np.random.default_rng(2).integers(0, 256, (2, 6, 10, 3), dtype=np.uint8)
    disparities = bench.match_blocks(left, right, 48, 3)
    assert (disparities <= np.arange(10)).all()


def test_quartering_is_exact_for_equal_disparities(bench: ModuleType) -> None:
    truth = np.full((8, 16), 5.0, np.float32)
    truth[2, 3] = np.inf
    assert np.abs(bench.quarter(truth) - 5).max() < 1e-6
    truth[:4, 8:12] = 9  # a whole square, which is blurred into its neighbours
    disparities = bench.quarter(truth)
    assert disparities.max() == pytest.approx(9, abs=1)
    assert np.abs(disparities[:, :6] - 5).max() < 1e-6

"""The floor that learned disparities are measured against."""

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest


@pytest.fixture
def block_matching(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
    import block_matching

    return block_matching


@pytest.mark.parametrize("window", [1, 3, 5, 9])
def test_sums_are_those_of_windows(block_matching: ModuleType, window: int) -> None:
    values = np.random.default_rng(0).normal(size=(6, 8))
    found, half = block_matching.box_sums(values, window), window // 2
    for y, x in np.ndindex(6, 8):
        part = values[max(0, y - half) : y + half + 1, max(0, x - half) : x + half + 1]
        assert found[y, x] == pytest.approx(part.sum(), abs=1e-10)


def test_a_shifted_image_is_matched_by_its_shift(block_matching: ModuleType) -> None:
    scene = np.random.default_rng(1).integers(0, 256, (12, 40, 3), dtype=np.uint8)
    left, right = scene[:, :32], scene[:, 5:37]
    found = block_matching.matched(left, right, 16, 3)
    assert (found[:, 6:] == 5).all()


def test_a_disparity_that_would_be_outside_is_not_chosen(block_matching: ModuleType) -> None:
    left, right = np.random.default_rng(2).integers(0, 256, (2, 6, 10, 3), dtype=np.uint8)
    found = block_matching.matched(left, right, 48, 3)
    assert (found <= np.arange(10)).all()


def test_the_quartered_truth_is_exact_where_disparities_are_all_the_same(block_matching: ModuleType) -> None:
    truth = np.full((8, 16), 5.0, np.float32)
    truth[2, 3] = np.inf
    assert np.abs(block_matching.quartered(truth) - 5).max() < 1e-6
    truth[:4, 8:12] = 9  # a square of its own, which is blurred into its neighbours
    found = block_matching.quartered(truth)
    assert found.max() == pytest.approx(9, abs=1)
    assert np.abs(found[:, :6] - 5).max() < 1e-6

"""Block matching, the baseline of learned disparities."""

from types import ModuleType

import numpy as np

BENCH = "block_matching"


def test_shift_of_an_image_is_its_disparity(bench: ModuleType) -> None:
    scene = np.random.default_rng(1).integers(0, 256, (12, 40, 3), dtype=np.uint8)
    left, right = scene[:, :32], scene[:, 5:37]
    disparities = bench.match_blocks(left, right, 16, 3)
    assert (disparities[:, 6:] == 5).all()

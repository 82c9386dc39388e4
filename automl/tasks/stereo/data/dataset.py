"""Stereo pairs for the training loop: splits, whole pairs and crops."""

from functools import lru_cache
from pathlib import Path

import numpy as np

from automl.data.records import Records
from automl.tasks.stereo.data.cache import PairsFile, open_cached_pairs


class StereoPairs(Records[PairsFile]):
    """The pairs of a source. Frames of one sequence are nearly the same, so a sequence is in one split."""

    noun = "stereo pairs"

    def pair(self, row: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return left and right image, uint8 `(H, W, 3)`, and disparity, float32 `(H, W)`; not writable."""
        return *self.file.images(row), self.file.disparity(row)

    def crop(
        self, row: int, at: tuple[float, float], height: int, width: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the same box of both images and the disparities, copied.

        `at` is the position of the box, from 0 (top, left) to 1. If the pair is smaller than the box, the
        bottom and the right are filled with zeros of unknown disparity.
        """
        crops = []
        for array, empty in zip(self.pair(row), (0, 0, np.inf), strict=True):
            box = np.full((height, width, *array.shape[2:]), empty, array.dtype)
            h, w = array.shape[:2]
            top, left = round(at[0] * max(0, h - height)), round(at[1] * max(0, w - width))
            source = array[top : top + height, left : left + width]
            box[: source.shape[0], : source.shape[1]] = source
            crops.append(box)
        return crops[0], crops[1], crops[2]


def open_pairs(source: str, *, path: str | Path | None = None, subset: float = 1.0) -> StereoPairs:
    """Open the pairs of a source. Raises InputError like `open_cached_pairs` and `Records`."""
    return _open_file(open_cached_pairs(source, path).path, subset)


@lru_cache(maxsize=4)
def _open_file(file: Path, subset: float) -> StereoPairs:
    return StereoPairs(PairsFile(file), subset)

"""Stereo pairs as the training loop reads them: which are in which split, whole or as crops."""

from functools import lru_cache
from pathlib import Path

import numpy as np

from automl.data.records import Records
from automl.data.stereo.stereo_cache import PairsFile, open_cached_pairs


class StereoPairs(Records[PairsFile]):
    """The pairs of a source. Frames of one sequence are nearly the same, so a sequence is in one split."""

    noun = "stereo pairs"

    def pair(self, row: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Left and right, uint8 `(H, W, 3)`, and disparity, float32 `(H, W)`; views that are not writable."""
        return *self.file.images(row), self.file.disparity(row)

    def crop(
        self, row: int, at: tuple[float, float], height: int, width: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The same box of both images and the disparities, copied.

        at: where the box is, from 0 (at the top, at the left) to 1. Where the pair is smaller than the box,
        there are zeros at the bottom and the right, of unknown disparity.
        """
        found = []
        for array, empty in zip(self.pair(row), (0, 0, np.inf), strict=True):
            box = np.full((height, width, *array.shape[2:]), empty, array.dtype)
            h, w = array.shape[:2]
            top, left = round(at[0] * max(0, h - height)), round(at[1] * max(0, w - width))
            part = array[top : top + height, left : left + width]
            box[: part.shape[0], : part.shape[1]] = part
            found.append(box)
        return found[0], found[1], found[2]


def open_pairs(source: str, *, path: str | Path | None = None, subset: float = 1.0) -> StereoPairs:
    """The pairs of a source, as they are now. Raises InputError like `cached_pairs` and `Records`."""
    return _open_file(open_cached_pairs(source, path).path, subset)


@lru_cache(maxsize=4)
def _open_file(file: Path, subset: float) -> StereoPairs:
    return StereoPairs(PairsFile(file), subset)

"""Stereo pairs as the training loop reads them: which are in which split, whole or as crops."""

from collections.abc import Mapping
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np

from attention.errors import InputError
from automl.data.manifest import Manifest
from automl.data.splits import SPLITS, carve, keys_of, one_class, thinned
from automl.data.stereo.cache import PairsFile, cached_pairs

SHARE = 0.2  # of what a test or validation split is carved from


class StereoPairs:
    """The pairs of a source by number, and the numbers of each split.

    subset: the share of the pairs of "train" and "validation" that is used.

    A split that the source does not give is carved from the training pairs: by the content of each, or where
    they are frames of sequences by the sequence, since two frames in a row are nearly the same.

    Raises InputError where no split can be carved.
    """

    def __init__(self, file: PairsFile, subset: float) -> None:
        self.file, self.subset = file, subset
        self.carved: list[str] = []
        given = {name: np.flatnonzero(file.split == i) for i, name in enumerate(SPLITS)}
        given["train"] = np.flatnonzero((file.split == 0) | (file.split == -1))
        for split in ("test", "validation"):
            if not len(given[split]):
                given[split], given["train"] = self._carved(given["train"], split)
                self.carved.append(split)
        if not len(given["train"]):
            raise InputError("there are no stereo pairs to train on; give some the split train")
        self._rows: Mapping[str, np.ndarray] = {
            split: rows if split == "test" else rows[thinned(one_class(rows), file.keys[rows], subset)]
            for split, rows in given.items()
        }

    def _carved(self, rows: np.ndarray, split: str) -> tuple[np.ndarray, np.ndarray]:
        try:
            out, rest = carve(one_class(rows), self._keys[rows], SHARE, split)
        except InputError:
            raise InputError(
                f"a {split} split needs two different stereo pairs or sequences or more; got {len(rows)} "
                f"pairs; add pairs, or give the splits in a CSV"
            ) from None
        return rows[out], rows[rest]

    @cached_property
    def _keys(self) -> np.ndarray:
        """What each pair is split by, uint8 `(N, 32)`."""
        groups = np.array([bool(group) for group in self.file.groups])
        return np.where(groups[:, None], keys_of(self.file.groups), self.file.keys)

    def rows(self, split: str) -> np.ndarray:
        """The numbers of the pairs of a split, int64, ascending."""
        return self._rows[split]

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

    def describe_splits(self) -> dict[str, str]:
        """How each split came about, in words."""
        by = "the sequence, so that its frames are in one split" if any(self.file.groups) else "the content"
        part = f"{self.subset:.3g} of it; " if self.subset < 1 else ""
        told = {
            split: f"carved from the training pairs by a hash of {by}" if split in self.carved else "its own"
            for split in SPLITS
        }
        return {split: text if split == "test" else part + text for split, text in told.items()}

    def manifest(self) -> Manifest:
        """Which pairs are in which split, with a hash of each one's three files."""
        names, contents = self.file.names, self.file.keys
        return Manifest.of(
            {
                split: [(names[row], "", contents[row].tobytes()) for row in rows.tolist()]
                for split, rows in self._rows.items()
            }
        )


def open_pairs(source: str, *, path: str | Path | None = None, subset: float = 1.0) -> StereoPairs:
    """The pairs of a source, as they are now. Raises InputError like `cached_pairs` and `StereoPairs`."""
    return _opened(cached_pairs(source, path).path, subset)


@lru_cache(maxsize=4)
def _opened(file: Path, subset: float) -> StereoPairs:
    return StereoPairs(PairsFile(file), subset)

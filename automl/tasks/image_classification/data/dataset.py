"""A split for the training loop: labels in memory, pixels gathered from a memory map."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from automl.base.errors import InputError, unknown
from automl.data import shared
from automl.data.pictures.picture import cache_side
from automl.data.records import ImageRecords, Item, Listing
from automl.data.splits import SPLITS, hash_names, select_subset
from automl.data.tally import Tally
from automl.tasks.image_classification.data.cache import ImageCache, open_image_cache
from automl.tasks.image_classification.data.sources import get_archive_name, list_images


class Images:
    """N images of a cache, in an order of their own.

    It can be pickled: only the row numbers are sent.

    Attributes:
        labels: int64 `(N,)`.
        aspect: width / height of the originals, float32 `(N,)`.
        classes: the names of the classes.
        side: the side of the cached images in pixels.
        skipped: names of files that could not be decoded.
        digest: a hash of the data that the cache was made from.
        listed: the tally of the listing of all splits.
    """

    def __init__(
        self, cache: ImageCache, rows: np.ndarray | None = None, listed: Tally | None = None
    ) -> None:
        self.file = cache
        self.listed = Tally() if listed is None else listed
        self._rows = np.arange(len(cache.labels)) if rows is None else rows
        self.labels: Tensor = torch.from_numpy(cache.labels[self._rows].astype(np.int64))
        self.aspect: Tensor = torch.from_numpy(cache.aspect[self._rows])
        self.classes = cache.classes
        self.side = cache.side
        self.skipped = cache.skipped
        self.digest = cache.digest

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"Images({len(self)} images, {len(self.classes)} classes, side {self.side})"

    def names(self) -> list[str]:
        """Return the names of the N images: paths relative to the dataset's folder."""
        names = self.file.names
        return [names[row] for row in self._rows]

    def gather(self, indices: Tensor) -> Tensor:
        """Return the images at `indices` `(n,)` as uint8 `(n, side, side, 3)` on the CPU, copied.

        Raises IndexError for an index that is not in -N..N-1.
        """
        rows = self._rows[indices.cpu().numpy()]
        blocks, starts = self.file.blocks, self.file.starts
        block_of = np.searchsorted(starts, rows, side="right") - 1
        offsets = rows - starts[block_of]
        out = np.empty((len(rows), self.side, self.side, 3), np.uint8)
        for i, (block, row) in enumerate(zip(block_of.tolist(), offsets.tolist(), strict=True)):
            out[i] = blocks[block][row]
        return torch.from_numpy(out)


def open_split(
    source: str,
    split: str,
    *,
    path: str | Path | None = None,
    size: int,
    side: int | None = None,
    subset: float = 1.0,
) -> Images:
    """Open one split of a source for training at `size` pixels. Decodes it to its cache if needed.

    The images of a class are ranked by a hash of their content (`automl.data.splits`). The photographs of a
    downloaded archive are ranked by their names, which are the same at every size.

    Args:
        source: one of SOURCES.
        split: one of SPLITS.
        path: a folder or archive; None downloads or generates the source.
        size: the side of the images in training, in pixels.
        side: the side of the cached images, in pixels; `cache_side(size)` if None.
        subset: the approximate fraction of each class of "train" and "validation" that is used; "test" is
            always whole.

    Raises:
        InputError: The source or split is unknown, the size is below 1, or `image_sources.list_images` or
            `image_cache.open_image_cache` fails.
    """
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    side = cache_side(size) if side is None else side
    if size < 1 or side < 1:
        raise InputError(f"size and side of an image must be at least 1; got size {size} and side {side}")
    listed, cache = Tally(), shared.find_split(ImageCache, shared_name(source, path, size, side), split)
    if cache is None:
        records = open_image_records(source, path=path, size=size)
        cache = open_image_cache(records.inputs(split), records.file.classes, side, f"{source} {split}")
        listed = records.tally
    keys = cache.contents if get_archive_name(source, path, size) is None else hash_names(cache.names)
    rows = None if split == "test" else select_subset(cache.labels, keys, subset)
    return Images(cache, rows, listed)


def open_image_records(
    source: str, *, path: str | Path | None = None, size: int, subset: float = 1.0
) -> ImageRecords[Listing[Item]]:
    """List the images of a source and their splits, without decoding them.

    Raises InputError like `image_sources.list_images`, and if a missing split cannot be held out.
    """
    return ImageRecords(list_images(source, path, size), subset)


def shared_name(source: str, path: str | Path | None, size: int, side: int | None = None) -> str:
    """Return the name under which a search's storage keeps the dataset, decoded for training at `size`
    pixels.
    """
    return f"{source} {path or ''} {size} {side or cache_side(size)}"

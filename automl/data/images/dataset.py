"""A split as the training loop reads it: labels in memory, pixels gathered from a memory map."""

from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from attention.errors import InputError, unknown
from automl.data import shared
from automl.data.images.cache import Cache, cached
from automl.data.images.decode import cache_side
from automl.data.images.sources import archive_of, items
from automl.data.manifest import Manifest
from automl.data.splits import SHARE, SPLITS, as_keys, carve, carved_words, describe, keys_of, thinned
from automl.data.tally import Tally


class Images:
    """N images of a cache, in an order of their own.

    `labels` int64 (N,), `aspect` float32 (N,) width / height of the original, `classes` their names,
    `side` the pixels of a side, `skipped` the names of files that could not be decoded, `digest` a hash
    of what the cache was made of, `listed` the tally of the listing of all splits. It can be pickled: only
    the row numbers travel.
    """

    def __init__(self, cache: Cache, rows: np.ndarray | None = None, listed: Tally | None = None) -> None:
        self._cache = cache
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
        """The N images' names: paths relative to the dataset's folder."""
        names = self._cache.names
        return [names[row] for row in self._rows]

    def tally_with(self, *others: "Images") -> Tally:
        """Return what was left out, turned, rescaled or is double in these splits."""
        caches = {
            images.digest: images._cache for images in (self, *others)
        }  # splits may come from one cache
        return sum((cache.tally for cache in caches.values()), self.listed)

    def gather(self, indices: Tensor) -> Tensor:
        """The images at `indices` (n,), as uint8 (n, side, side, 3) on the CPU, copied.

        Raises IndexError for an index that is not in -N..N-1.
        """
        rows = self._rows[indices.cpu().numpy()]
        blocks, starts = self._cache.blocks, self._cache.starts
        where = np.searchsorted(starts, rows, side="right") - 1
        out = np.empty((len(rows), self.side, self.side, 3), np.uint8)
        for i, (block, row) in enumerate(zip(where.tolist(), (rows - starts[where]).tolist(), strict=True)):
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
    """Opens one split of a source for training at `size` pixels, decoding it to its cache if need be.

    `side`: of the cached images, `cache_side(size)` unless given. `subset`: about the share of each class of
    "train" and "validation" that is used; "test" is always whole. The images of a class are ranked by a hash
    of their content (`automl.data.splits`); the photographs of a downloaded archive by their names, which
    they have at every size.

    Raises InputError for an unknown source or split, a size below 1, and for everything that
    `automl.data.images.sources.items` and `automl.data.images.cache.cached` refuse.
    """
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    side = cache_side(size) if side is None else side
    if size < 1 or side < 1:
        raise InputError(f"an image needs at least 1 pixel a side, not size {size} and side {side}")
    own, cache, listed = _stored(source, split, path, size, side)
    keys = cache.contents if archive_of(source, path, size) is None else keys_of(cache.names)
    return Images(cache, _rows(split, own, cache.labels, keys, subset), listed)


def make_manifest(source: str, *, path: str | Path | None = None, size: int, subset: float = 1.0) -> Manifest:
    """Which images are in which split as `open_split` makes them, none of which is decoded.

    Raises InputError like `open_split`.
    """
    everything, archive = items(source, path, size), archive_of(source, path, size)
    splits = {}
    for split in SPLITS:
        stored = everything.splits[split if split in everything.splits else "train"]
        labels = np.array([item.label for item in stored])
        names = [item.name for item in stored]
        keys = as_keys(item.content for item in stored) if archive is None else keys_of(names)
        rows = _rows(split, everything.splits, labels, keys, subset)
        splits[split] = [
            (names[row], everything.classes[labels[row]], stored[row].content) for row in rows.tolist()
        ]
    return Manifest.of(splits, archive=archive)


def _rows(
    split: str, own: Collection[str], labels: np.ndarray, keys: np.ndarray, subset: float
) -> np.ndarray:
    """The rows of a split among those that it is stored with. own: the splits that the dataset brings."""
    rows: np.ndarray = np.arange(len(labels))
    if split == "test":
        return rows
    if "validation" not in own:
        held, kept = carve(labels, keys, SHARE, "validation")
        rows = held if split == "validation" else kept
    used: np.ndarray = rows[thinned(labels[rows], keys[rows], subset)]
    return used


def _stored(
    source: str, split: str, path: str | Path | None, size: int, side: int
) -> tuple[Collection[str], Cache, Tally]:
    """The dataset's own splits, the one of them that `split` comes from, and the tally of its listing."""
    known = shared.find(Cache, shared_name(source, path, size, side), split)
    if known is not None:
        return *known, Tally()
    everything = items(source, path, size)
    stored = split if split in everything.splits else "train"
    cache = cached(everything.splits[stored], everything.classes, side, f"{source} {stored}")
    return everything.splits.keys(), cache, everything.tally


def shared_name(source: str, path: str | Path | None, size: int, side: int | None = None) -> str:
    """Return the name of the dataset, decoded for training at `size` pixels, in a search's storage."""
    return f"{source} {path or ''} {size} {side or cache_side(size)}"


def stored_files(
    source: str, splits: Sequence[str], *, path: str | Path | None, size: int
) -> tuple[Collection[str], dict[str, Path]]:
    """Return the dataset's own splits, and the cache file of each of `splits`; raises like `open_split`."""
    stored = {split: _stored(source, split, path, size, cache_side(size)) for split in splits}
    own = {each for found, _, _ in stored.values() for each in found}
    return own, {split: cache.path for split, (_, cache, _) in stored.items()}


def describe_splits(
    source: str, *, path: str | Path | None = None, size: int, subset: float = 1.0
) -> dict[str, str]:
    """How `open_split` comes to each split with these arguments, in words.

    Raises InputError for what `automl.data.images.sources.items` refuses.
    """
    everything = items(source, path, size)
    by = "content" if archive_of(source, path, size) is None else "names"
    carved = [] if "validation" in everything.splits else ["validation"]
    carved += ["test"] if everything.carved else []
    words = {split: carved_words(split, "images", by, each=" of each class,") for split in carved}
    return describe(words, "images", subset, "each class of ")

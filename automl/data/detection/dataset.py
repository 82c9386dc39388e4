"""A split as the training loop reads it: images from a memory map, and their objects; splits, manifests."""

from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from attention.errors import InputError, unknown
from automl.data import shared
from automl.data.detection.cache import Cache, cached
from automl.data.detection.folder import Listing, read_folder
from automl.data.detection.objects import Objects, Photo
from automl.data.detection.scenes import read_scenes
from automl.data.manifest import Manifest
from automl.data.splits import OWN, SHARE, SPLITS, as_keys, carve, carved_words, describe, one_class, thinned
from automl.data.tally import Tally

SOURCES = ("scenes", "coco")
COPY = "copies of another image of their file of annotations"
HALF = 0.5  # of the images for validation, for test, where there is none


class DetectionImages:
    """N images of a cache and their objects, in the order of the dataset.

    `classes` their names, of labels from 1 on, and `categories` their numbers in the annotations.
    `has_masks`: whether every object has a mask.
    """

    def __init__(self, cache: Cache, rows: np.ndarray) -> None:
        self._cache, self._rows = cache, rows
        self.classes, self.categories, self.has_masks = cache.classes, cache.categories, cache.has_masks

    def __len__(self) -> int:
        return len(self._rows)

    def image(self, index: int) -> np.ndarray:
        """uint8 (rows, columns, 3), not to be written to."""
        return self._cache.image(int(self._rows[index]))

    def objects(self, index: int) -> Objects:
        """Boxes and areas in pixels of the original, masks of the size that is stored."""
        return self._cache.objects(int(self._rows[index]))

    def original(self, index: int) -> tuple[int, int]:
        """Width and height of the image as it was before it was scaled."""
        row = int(self._rows[index])
        return int(self._cache.width[row]), int(self._cache.height[row])

    def stored(self, index: int) -> tuple[int, int]:
        """Width and height of the image as it is now."""
        row = int(self._rows[index])
        return int(self._cache.columns[row]), int(self._cache.rows[row])

    def tally_with(self, *others: "DetectionImages") -> Tally:
        """Return what was turned, rescaled or is double in these splits."""
        caches = {images._cache.path: images._cache for images in (self, *others)}  # splits may share one
        tally = sum((cache.changes() for cache in caches.values()), Tally())
        for cache in caches.values():
            tally.keep_copies(COPY, zip(cache.names, map(bytes, cache.keys), strict=True))
        return tally

    def names(self) -> list[str]:
        names = self._cache.names
        return [names[row] for row in self._rows]


def read_listing(source: str, path: str | Path | None) -> Listing:
    """What a source has, before it is decoded.

    Raises InputError for an unknown source, a path that is missing or not wanted, and like `read_folder`.
    """
    if source not in SOURCES:
        raise unknown("data source of detection", source, SOURCES)
    if source == "scenes":
        if path is not None:
            raise InputError(f"scenes are made of digits and take no path, not {path}; drop --data")
        return read_scenes()
    if path is None:
        raise InputError("detection needs the path of a folder in COCO's layout; pass --data FOLDER")
    return read_folder(path)


def open_split(
    source: str, split: str, *, path: str | None = None, size: int, subset: float = 1.0
) -> DetectionImages:
    """Opens one split of a source, decoding it to its cache if need be.

    size: of the longer side of an image, at most. subset: about the share of the images of "train" and
    "validation" that is used. Where there are no images for test, half of those for validation are; where
    there are none for validation either, a fifth of the training images for each. The images are ranked by a
    hash of their content (`automl.data.splits`).

    Raises InputError like `read_listing` and `cached`, and for a split without objects.
    """
    own, cache = _stored(source, split, path, size)
    found = DetectionImages(cache, _rows(split, own, cache.keys, subset))
    if not any((~found.objects(i).crowd).any() for i in range(len(found))):
        raise InputError(
            f"there are {len(found)} images for {split} and no objects in them; add images with objects, or "
            f"take a larger --subset"
        )
    return found


def _stored(source: str, split: str, path: str | None, size: int) -> tuple[Collection[str], Cache]:
    """The splits that the dataset has of its own, and the one of them that `split` comes from."""
    if (known := shared.find(Cache, shared_name(source, path, size), split)) is not None:
        return known
    listing = read_listing(source, path)
    stored = _from(split, listing.splits)
    cache = cached(
        listing.splits[stored],
        listing.categories,
        size,
        f"{source} {stored}",
        has_masks=listing.has_masks,
    )
    return listing.splits.keys(), cache


def _from(split: str, own: Collection[str]) -> str:
    """The split of the dataset that `split` is made of."""
    if split in own:
        return split
    return "validation" if split == "test" and "validation" in own else "train"


def _rows(split: str, own: Collection[str], keys: np.ndarray, subset: float) -> np.ndarray:
    """The rows of a split among those that it is stored with. own: the splits that the dataset has."""
    rows: np.ndarray = np.arange(len(keys))
    if "test" not in own and _from(split, own) == _from("test", own):
        held, kept = _carved(keys, rows, HALF if "validation" in own else SHARE, "test")
        rows = held if split == "test" else kept
    if split == "test":
        return rows
    if "validation" not in own:
        held, kept = _carved(keys, rows, SHARE, "validation")
        rows = held if split == "validation" else kept
    used: np.ndarray = rows[thinned(one_class(rows), keys[rows], subset, least=0)]
    return used


def _carved(keys: np.ndarray, rows: np.ndarray, share: float, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Divide rows into those of a split and the rest."""
    held, kept = carve(one_class(rows), keys[rows], share, split)
    return rows[held], rows[kept]


def rows_of(split: str, listing: Listing, subset: float = 1.0) -> list[Photo]:
    """The images of a split."""
    photos = listing.splits[_from(split, listing.splits)]
    rows = _rows(split, listing.splits, as_keys(photo.key for photo in photos), subset)
    return [photos[row] for row in rows.tolist()]


def make_manifest(source: str, *, path: str | None = None, subset: float = 1.0) -> Manifest:
    """Which images are in which split, with a hash of each one's pixels and annotations; decodes none.

    Raises InputError like `read_listing`.
    """
    listing = read_listing(source, path)
    return Manifest.of(
        {
            split: [(photo.name, "", photo.content) for photo in rows_of(split, listing, subset)]
            for split in SPLITS
        }
    )


def describe_splits(source: str, *, path: str | None = None, subset: float = 1.0) -> dict[str, str]:
    """How each split came about, in words."""
    own = read_listing(source, path).splits
    words = {split: carved_words(split, "images", "content") for split in SPLITS if split not in own}
    if "test" in words and "validation" in own:
        half = "about half of the images for validation, chosen by their content"
        words = {"train": OWN, "validation": "the others of the dataset's own", "test": half}
    return describe(words, "images", subset)


def shared_name(source: str, path: str | None, size: int) -> str:
    """Return the name of the dataset, decoded at `size` pixels, in a search's storage."""
    return f"detection {source} {path or ''} {size}"


def stored_files(
    source: str, splits: Sequence[str], *, path: str | None, size: int
) -> tuple[Collection[str], dict[str, Path]]:
    """Return the dataset's own splits, and the cache file of each of `splits`; raises like `open_split`."""
    stored = {split: _stored(source, split, path, size) for split in splits}
    own = {each for found, _ in stored.values() for each in found}
    return own, {split: cache.path for split, (_, cache) in stored.items()}

"""A split as the training loop reads it: images from a memory map, and their objects; splits, manifests."""

from pathlib import Path

import numpy as np

from attention.errors import InputError, unknown
from automl.data import shared
from automl.data.detection.coco_folder import DetectionListing, read_coco_folder
from automl.data.detection.detection_cache import DetectionCache, open_detection_cache
from automl.data.detection.objects import Objects
from automl.data.detection.scenes import read_scenes
from automl.data.items import ImageRecords
from automl.data.splits import select_subset, single_class
from automl.data.tally import Tally

SOURCES = ("scenes", "coco")


class DetectionImages:
    """N images of a cache and their objects, in the order of the dataset.

    `classes` their names, of labels from 1 on, and `categories` their numbers in the annotations.
    `has_masks`: whether every object has a mask. `listed` is the tally of the listing of all splits.
    """

    def __init__(self, cache: DetectionCache, rows: np.ndarray, listed: Tally) -> None:
        self.file, self._rows, self.listed = cache, rows, listed
        self.classes, self.categories, self.has_masks = cache.classes, cache.categories, cache.has_masks

    def __len__(self) -> int:
        return len(self._rows)

    def image(self, index: int) -> np.ndarray:
        """uint8 (rows, columns, 3), not to be written to."""
        return self.file.image(int(self._rows[index]))

    def objects(self, index: int) -> Objects:
        """Boxes and areas in pixels of the original, masks of the size that is stored."""
        return self.file.objects(int(self._rows[index]))

    def original(self, index: int) -> tuple[int, int]:
        """Width and height of the image as it was before it was scaled."""
        row = int(self._rows[index])
        return int(self.file.width[row]), int(self.file.height[row])

    def stored(self, index: int) -> tuple[int, int]:
        """Width and height of the image as it is now."""
        row = int(self._rows[index])
        return int(self.file.columns[row]), int(self.file.rows[row])

    def names(self) -> list[str]:
        names = self.file.names
        return [names[row] for row in self._rows]


def read_listing(source: str, path: str | Path | None) -> DetectionListing:
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
    return read_coco_folder(path)


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
    listed, cache = Tally(), shared.find_split(DetectionCache, shared_name(source, path, size), split)
    if cache is None:
        records = open_detection_records(source, path=path)
        listing, listed = records.file, records.tally
        cache = open_detection_cache(
            records.inputs(split), listing.categories, size, f"{source} {split}", has_masks=listing.has_masks
        )
    rows = np.arange(len(cache))
    if split != "test":
        rows = select_subset(single_class(rows), cache.keys, subset)
    found = DetectionImages(cache, rows, listed)
    if not any((~found.objects(i).crowd).any() for i in range(len(found))):
        raise InputError(
            f"there are {len(found)} images for {split} and no objects in them; add images with objects, or "
            f"take a larger --subset"
        )
    return found


def open_detection_records(
    source: str, *, path: str | None = None, subset: float = 1.0
) -> ImageRecords[DetectionListing]:
    """The images of a source and which are in which split; decodes none.

    Raises InputError like `read_listing`, and where no split can be carved.
    """
    return ImageRecords(read_listing(source, path), subset)


def shared_name(source: str, path: str | None, size: int) -> str:
    """Return the name of the dataset, decoded at `size` pixels, in a search's storage."""
    return f"detection {source} {path or ''} {size}"

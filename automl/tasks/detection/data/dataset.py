"""A split for the training loop: images from a memory map with their objects; splits and manifests."""

from pathlib import Path

import numpy as np

from automl.base.errors import InputError, unknown
from automl.data import shared
from automl.data.records import ImageRecords
from automl.data.splits import make_single_class_labels, select_subset
from automl.data.tally import Tally
from automl.tasks.detection.data.cache import DetectionCache, open_detection_cache
from automl.tasks.detection.data.coco_folder import DetectionListing, read_coco_folder
from automl.tasks.detection.data.objects import Objects
from automl.tasks.detection.data.scenes import read_scenes

SOURCES = ("scenes", "coco")


class DetectionImages:
    """N images of a cache and their objects, in the order of the dataset.

    Attributes:
        classes: names of the labels from 1 on.
        categories: ids of the classes in the annotations.
        has_masks: whether every object has a mask.
        listed: the tally of the listing of all splits.
    """

    def __init__(self, cache: DetectionCache, rows: np.ndarray, listed: Tally) -> None:
        self.file, self._rows, self.listed = cache, rows, listed
        self.classes, self.categories, self.has_masks = cache.classes, cache.categories, cache.has_masks

    def __len__(self) -> int:
        return len(self._rows)

    def image(self, index: int) -> np.ndarray:
        """Return an image, uint8 `(rows, columns, 3)`, read-only."""
        return self.file.image(int(self._rows[index]))

    def objects(self, index: int) -> Objects:
        """Return the objects of an image. Boxes and areas are in pixels of the original, masks have the
        stored size.
        """
        return self.file.objects(int(self._rows[index]))

    def original(self, index: int) -> tuple[int, int]:
        """Return width and height of the image before it was scaled."""
        row = int(self._rows[index])
        return int(self.file.width[row]), int(self.file.height[row])

    def stored(self, index: int) -> tuple[int, int]:
        """Return width and height of the stored image."""
        row = int(self._rows[index])
        return int(self.file.columns[row]), int(self.file.rows[row])

    def names(self) -> list[str]:
        names = self.file.names
        return [names[row] for row in self._rows]


def read_listing(source: str, path: str | Path | None) -> DetectionListing:
    """List the images of a source before they are decoded.

    Raises InputError for an unknown source, a path that is missing or not allowed, and like
    `read_coco_folder`.
    """
    if source not in SOURCES:
        raise unknown("data source of detection", source, SOURCES)
    if source == "scenes":
        if path is not None:
            raise InputError(f"scenes are bundled and take no path; got {path}. Drop --data")
        return read_scenes()
    if path is None:
        raise InputError("detection needs the path of a folder in COCO's layout; pass --data FOLDER")
    return read_coco_folder(path)


def open_split(
    source: str, split: str, *, path: str | None = None, size: int, subset: float = 1.0
) -> DetectionImages:
    """Open one split of a source. Decodes it to its cache if needed.

    Without test images, half of the validation images become the test split. Without validation images, a
    fifth of the training images is held out for each. The images are ranked by a hash of their content
    (`automl.data.splits`).

    Args:
        source: one of SOURCES.
        split: one of `automl.data.splits.SPLITS`.
        path: a folder or archive; None for the bundled scenes.
        size: the maximum of the longer side of an image, in pixels.
        subset: the approximate fraction of the images of "train" and "validation" that is used.

    Raises:
        InputError: Like `read_listing` and `open_detection_cache`, and for a split without objects.
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
        rows = select_subset(make_single_class_labels(rows), cache.keys, subset)
    images = DetectionImages(cache, rows, listed)
    if not any((~images.objects(i).crowd).any() for i in range(len(images))):
        raise InputError(
            f"the {len(images)} images of the {split} split have no objects. Add images with objects, or "
            f"choose a larger --subset"
        )
    return images


def open_detection_records(
    source: str, *, path: str | None = None, subset: float = 1.0
) -> ImageRecords[DetectionListing]:
    """List the images of a source and their splits, without decoding them.

    Raises InputError like `read_listing`, and if a missing split cannot be held out.
    """
    return ImageRecords(read_listing(source, path), subset)


def shared_name(source: str, path: str | None, size: int) -> str:
    """Return the name under which a search's storage keeps the dataset, decoded at `size` pixels."""
    return f"detection {source} {path or ''} {size}"

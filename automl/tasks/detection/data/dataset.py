"""A split for the training loop, decoded once into an Arrow file that every process maps into memory.

An image has the size of its file, or is scaled down so that its longer side has `size` pixels. The name of
the file is a hash of its content. Columns: name, key (SHA-256 of the image), width and height of the
original, rows and columns of the stored image, image (rows x columns x 3 bytes), and changes (strings, see
`Picture.changes`). Columns of lists with an entry for each object: boxes (4 x float64, in pixels of the
original), labels, crowd, areas and masks (run lengths at the stored size).
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from automl.base.errors import InputError, unknown
from automl.data import shared
from automl.data.arrow import ArrowFile, map_in_threads, write_rows
from automl.data.digest import SIZE
from automl.data.pictures import read_picture
from automl.data.records import ImageRecords
from automl.data.splits import make_single_class_labels, select_subset
from automl.data.tally import Tally
from automl.tasks.detection.data import masks
from automl.tasks.detection.data.annotations import build_objects
from automl.tasks.detection.data.coco_folder import DetectionListing, read_coco_folder
from automl.tasks.detection.data.objects import (
    Objects,
    Photo,
    check_sizes,
    describe_size_mismatch,
    describe_undecodable,
    scale_size,
)
from automl.tasks.detection.data.scenes import read_scenes

FORMAT = 5  # Raise it when the format of the file or the decoding changes.

SCHEMA = pa.schema(
    {
        "name": pa.string(),
        "key": pa.binary(SIZE),
        **{side: pa.int32() for side in ("width", "height", "rows", "columns")},
        "image": pa.large_binary(),
        "changes": pa.list_(pa.string()),
        "boxes": pa.list_(pa.float64()),
        "labels": pa.list_(pa.int64()),
        "crowd": pa.list_(pa.bool_()),
        "areas": pa.list_(pa.float64()),
        "masks": pa.list_(pa.binary()),
    }
)


class DetectionCache(ArrowFile):
    """An opened file of N images.

    Attributes:
        classes: names of the classes.
        categories: their ids in the annotations.
        has_masks: whether every object has a mask.
        width, height: size of the originals, int32 `(N,)`.
        rows, columns: size of the stored images, int32 `(N,)`.
        keys: hashes of the images, uint8 `(N, 32)`.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.classes: tuple[str, ...] = tuple(self.about["classes"])
        self.categories: tuple[int, ...] = tuple(self.about["categories"])
        self.has_masks: bool = self.about["has_masks"]
        self.width, self.height, self.rows, self.columns = (
            self.table[name].to_numpy() for name in ("width", "height", "rows", "columns")
        )
        self.keys = self.read_hashes("key")
        if not ((self.rows > 0) & (self.columns > 0)).all():
            raise ValueError("a side is out of range")

    def __len__(self) -> int:
        return len(self.width)


def open_detection_cache(
    photos: Sequence[Photo], categories: Mapping[int, str], size: int, name: str, *, has_masks: bool
) -> DetectionCache:
    """Return the cache of `photos` whose longer sides have at most `size` pixels. Builds it if it is missing
    or damaged.

    `name` describes the images in messages.

    Raises InputError for an image that cannot be decoded or has another size than in its annotations, and if
    the cache folder is full or not writable.
    """
    about = {"classes": list(categories.values()), "categories": list(categories), "has_masks": has_masks}
    key = hashlib.sha256(json.dumps([FORMAT, size, has_masks, list(categories.items())]).encode())
    for photo in photos:
        key.update(photo.name.encode("utf-8", "surrogateescape") + b"\0" + photo.content)
    labels = {number: i for i, number in enumerate(categories, start=1)}

    def write(path: Path) -> str:
        check_sizes(photos)  # Fail before hours of decoding.
        rows = map_in_threads(
            f"decoding {name} images", photos, lambda photo: _make_row(photo, labels, size, has_masks)
        )
        write_rows(path, SCHEMA, rows, about)
        return f"decoded {len(photos)} {name} images"

    needed = sum(3 * size * size * min(1.0, p.width * p.height / size**2) for p in photos)
    return DetectionCache.open_cached(key.digest(), write, needed=needed)


def _make_row(photo: Photo, labels: Mapping[int, int], size: int, has_masks: bool) -> dict[str, Any]:
    pixels, changes = decode_photo(photo.image, photo.width, photo.height, size)
    full, stored = (photo.height, photo.width), (pixels.shape[0], pixels.shape[1])
    objects = build_objects(photo.annotations, labels, full, masked=has_masks)
    return {
        "name": photo.name,
        "key": photo.key,
        "width": photo.width,
        "height": photo.height,
        "rows": stored[0],
        "columns": stored[1],
        "image": pixels.tobytes(),
        "changes": changes,
        "boxes": objects.boxes.ravel().tolist(),
        "labels": objects.labels.tolist(),
        "crowd": objects.crowd.tolist(),
        "areas": objects.areas.tolist(),
        "masks": masks.resize_masks(objects.masks, full, stored) if objects.masks is not None else [],
    }


def decode_photo(
    image: Path | np.ndarray, width: int, height: int, size: int
) -> tuple[np.ndarray, Sequence[str]]:
    """Return an image, uint8 `(rows, columns, 3)`, with at most `size` pixels at the longer side, and its
    changes.

    `width` and `height` are those of the annotations. An image that EXIF turns stays as it is stored if only
    then it has this size, since both kinds of annotations exist.

    Raises InputError for an image that cannot be decoded or has another size.
    """
    changes: Sequence[str] = ()
    if isinstance(image, np.ndarray):
        picture = Image.fromarray(image)
    else:
        try:
            picture, _, _, changes = read_picture(image, annotated=(width, height))
        except MemoryError:
            raise
        except Exception as error:  # Pillow raises nearly any error for a damaged file.
            raise InputError(describe_undecodable(image, error)) from error
        if picture.size != (width, height):
            raise InputError(describe_size_mismatch(image, picture.size, (width, height)))
    if (scaled := scale_size(width, height, size)) != (width, height):
        picture = picture.resize(scaled, Image.Resampling.BILINEAR)
    return np.asarray(picture), changes


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
        """Return an image, uint8 `(rows, columns, 3)`, not copied and read-only."""
        row = int(self._rows[index])
        pixels = np.frombuffer(self.file.table["image"][row].as_buffer(), np.uint8)
        return pixels.reshape(self.file.rows[row], self.file.columns[row], 3)

    def objects(self, index: int) -> Objects:
        """Return the objects of an image: boxes and areas in pixels of the original, masks as stored."""
        columns = ("boxes", "labels", "crowd", "areas", "masks")
        values = (self.file.table[name][int(self._rows[index])].as_py() for name in columns)
        boxes, labels, crowd, areas, runs = values
        return Objects(
            boxes=np.array(boxes, np.float64).reshape(-1, 4),
            labels=np.array(labels, np.int64),
            crowd=np.array(crowd, bool),
            areas=np.array(areas, np.float64),
            masks=runs if self.has_masks else None,
        )

    def original(self, index: int) -> tuple[int, int]:
        """Return width and height of the image before it was scaled."""
        row = int(self._rows[index])
        return int(self.file.width[row]), int(self.file.height[row])

    def stored(self, index: int) -> tuple[int, int]:
        """Return width and height of the stored image."""
        row = int(self._rows[index])
        return int(self.file.columns[row]), int(self.file.rows[row])

    def names(self) -> list[str]:
        return [self.file.names[row] for row in self._rows]


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

    The longer side of an image has at most `size` pixels. `subset` is the approximate fraction of the images
    of "train" and "validation" that is used.

    Raises InputError like `read_listing` and `open_detection_cache`, and for a split without objects.
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

"""A split for the training loop, decoded once into an Arrow file that every process maps into memory.

An image has the size of its file, or is scaled down so that its longer side has `size` pixels. The name of
the file is a hash of its content. Columns: name, key (SHA-256 of the image), width and height of the
original, rows and columns of the stored image, image (rows x columns x 3 bytes), and changes (strings, see
`Picture.changes`). Columns of lists with an entry for each object: boxes (4 x float64, in pixels of the
original), labels, crowd, areas and masks (run lengths at the stored size).
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from automl.base.errors import InputError, unknown
from automl.base.units import pluralize
from automl.data import shared
from automl.data.arrow import PIXELS, write_mapped
from automl.data.digits import COUNTS, SIDE, Scene, draw_scenes
from automl.data.files import SIZE
from automl.data.overview import Overview
from automl.data.pictures import describe_sizes, read_picture
from automl.data.records import ImageRecords
from automl.data.splits import SPLITS, select_subset
from automl.data.tally import Tally, join_examples
from automl.tasks.detection import DetectionData
from automl.tasks.detection.data import masks
from automl.tasks.detection.data.annotations import build_objects
from automl.tasks.detection.data.coco_folder import DetectionListing, read_coco_folder
from automl.tasks.detection.data.masks import (
    Objects,
    Photo,
    check_sizes,
    describe_size_mismatch,
    describe_undecodable,
    scale_size,
)

FORMAT = 5  # Raise it when the format of the file or the decoding changes.

SCHEMA = pa.schema(
    {
        "name": pa.string(),
        "key": pa.binary(SIZE),
        **{side: pa.int32() for side in ("width", "height", "rows", "columns")},
        PIXELS: pa.large_binary(),
        "changes": pa.list_(pa.string()),
        "boxes": pa.list_(pa.float64()),
        "labels": pa.list_(pa.int64()),
        "crowd": pa.list_(pa.bool_()),
        "areas": pa.list_(pa.float64()),
        "masks": pa.list_(pa.binary()),
    }
)


class DetectionCache(shared.ShardedFile):
    """An opened file of N images.

    Attributes:
        categories: ids of the classes in the annotations.
        width, height: size of the originals, int32 `(N,)`.
        rows, columns: size of the stored images, int32 `(N,)`.
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
    photos: Sequence[Photo], listing: DetectionListing, size: int, name: str
) -> DetectionCache:
    """Return the cache of `photos` whose longer sides have at most `size` pixels. Builds it if it is missing
    or damaged.

    `listing` is their dataset, and `name` describes them in messages.

    Raises InputError for an image that cannot be decoded or has another size than in its annotations, and if
    the cache folder is full or not writable.
    """
    categories, has_masks = listing.categories, listing.has_masks
    about = {"classes": list(categories.values()), "categories": list(categories), "has_masks": has_masks}
    key = hashlib.sha256(json.dumps([FORMAT, size, has_masks, list(categories.items())]).encode())
    for photo in photos:
        key.update(photo.name.encode("utf-8", "surrogateescape") + b"\0" + photo.content)
    needed = sum(3 * size * size * min(1.0, p.width * p.height / size**2) for p in photos)
    labels = {number: i for i, number in enumerate(categories, start=1)}
    make_row = partial(_make_row, labels=labels, size=size, has_masks=has_masks)
    row, title = max(1, int(needed) // max(1, len(photos))), f"{name} images"
    write = partial(write_mapped, title, SCHEMA, about, make_row)
    return shared.open_written(
        DetectionCache, key.digest(), photos, write, row=row, title=title, check=check_sizes
    )


def _make_row(photo: Photo, labels: Mapping[int, int], size: int, has_masks: bool) -> dict[str, Any]:
    pixels, changes = decode_photo(photo, size)
    full, stored = (photo.height, photo.width), (pixels.shape[0], pixels.shape[1])
    objects = build_objects(photo.annotations, labels, full, masked=has_masks)
    return {
        "name": photo.name,
        "key": photo.key,
        "width": photo.width,
        "height": photo.height,
        "rows": stored[0],
        "columns": stored[1],
        PIXELS: pixels.tobytes(),
        "changes": changes,
        "boxes": objects.boxes.ravel().tolist(),
        "labels": objects.labels.tolist(),
        "crowd": objects.crowd.tolist(),
        "areas": objects.areas.tolist(),
        "masks": masks.resize_masks(objects.masks, full, stored) if objects.masks is not None else [],
    }


def decode_photo(photo: Photo, size: int) -> tuple[np.ndarray, Sequence[str]]:
    """Return an image, uint8 `(rows, columns, 3)`, with at most `size` pixels at the longer side, and its
    changes.

    An image that EXIF turns stays as it is stored if only then it has the size of its annotations, since both
    kinds of annotations exist.

    Raises InputError for an image that cannot be decoded or has another size.
    """
    image, annotated = photo.image, (photo.width, photo.height)
    changes: Sequence[str] = ()
    if isinstance(image, np.ndarray):
        picture = Image.fromarray(image)
    else:
        try:
            picture, _, _, changes = read_picture(image, annotated=annotated)
        except MemoryError:
            raise
        except Exception as error:  # Pillow raises nearly any error for a damaged file.
            raise InputError(describe_undecodable(image, error)) from error
        if picture.size != annotated:
            raise InputError(describe_size_mismatch(image, picture.size, annotated))
    if (scaled := scale_size(*annotated, size)) != annotated:
        picture = picture.resize(scaled, Image.Resampling.BILINEAR)
    return np.asarray(picture), changes


SOURCES = ("scenes", "coco")


class DetectionImages:
    """N images of a cache and their objects, in the order of the dataset.

    Attributes:
        classes: names of the labels from 1 on.
        categories: ids of the classes in the annotations.
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
        pixels = np.frombuffer(self.file.whole[PIXELS][row].as_buffer(), np.uint8)
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


def open_split(data: DetectionData, split: str) -> DetectionImages:
    """Open one split of a source. Decodes it to its cache if needed.

    Without test images, half of the validation images become the test split. Without validation images, a
    fifth of the training images is held out for each. The images are ranked by a hash of their content
    (`automl.data.splits`).

    Raises InputError like `open_detection_records` and `open_detection_cache`, and for a split without
    objects.
    """
    listed, cache = Tally(), shared.find_split(DetectionCache, shared_name(data), split)
    if cache is None:
        records = open_detection_records(data)
        listed = records.tally
        cache = open_detection_cache(records.inputs(split), records.file, data.size, f"{data.source} {split}")
    rows = np.arange(len(cache))
    if split != "test":
        rows = select_subset(np.zeros_like(rows), cache.keys, data.subset)
    images = DetectionImages(cache, rows, listed)
    if not any((~images.objects(i).crowd).any() for i in range(len(images))):
        raise InputError(
            f"the {split} split has {pluralize(len(images), 'images')} without objects. Add images with "
            f"objects, or choose a larger --subset"
        )
    return images


def open_detection_records(data: DetectionData) -> ImageRecords[DetectionListing]:
    """List the images of a source and their splits, without decoding them.

    Raises InputError for an unknown source, a path that is missing or not allowed, like `read_coco_folder`,
    and if a missing split cannot be held out.
    """
    if data.source not in SOURCES:
        raise unknown("data source of detection", data.source, SOURCES)
    if data.source == "scenes":
        if data.path is not None:
            raise InputError(f"scenes are bundled and take no path; got {data.path}. Drop --data")
        return ImageRecords(read_scenes(), data.subset)
    if data.path is None:
        raise InputError("detection needs the path of a folder in COCO's layout; pass --data FOLDER")
    return ImageRecords(read_coco_folder(data.path), data.subset)


def shared_name(data: DetectionData) -> str:
    """Return the name under which a search's storage keeps the decoded dataset."""
    return f"detection {data.source} {data.path or ''} {data.size}"


@cache
def read_scenes() -> DetectionListing:
    """Return the bundled scenes, with what is visible of each digit, as a folder in COCO's layout."""
    splits: dict[str, list[Photo]] = {split: [] for split in COUNTS}
    for scene in draw_scenes():
        splits[scene.split].append(_make_photo(scene))
    return DetectionListing(categories={i + 1: str(i) for i in range(10)}, splits=splits, has_masks=True)


def _make_photo(scene: Scene) -> Photo:
    annotations = [_make_annotation(*pair) for pair in zip(scene.masks, scene.categories, strict=True)]
    key = hashlib.sha256(scene.image.tobytes()).digest()
    content = hashlib.sha256(key + json.dumps(annotations).encode()).digest()
    return Photo(
        name=scene.name,
        image=scene.image,
        width=SIDE,
        height=SIDE,
        key=key,
        content=content,
        annotations=annotations,
    )


def _make_annotation(mask: np.ndarray, category: int) -> dict[str, Any]:
    rows, columns = (np.flatnonzero(mask.any(axis)) for axis in (1, 0))
    left, top = int(columns[0]), int(rows[0])
    return {
        "category_id": category,
        "bbox": [left, top, int(columns[-1]) + 1 - left, int(rows[-1]) + 1 - top],
        "area": int(mask.sum()),
        "iscrowd": 0,
        "segmentation": {"size": [*mask.shape], "counts": masks.encode_masks(mask[None])[0].decode()},
    }


def summarise_detection(path: str | Path) -> Overview:
    """Return the overview of a folder without decoding. Raises InputError for invalid data."""
    records = open_detection_records(DetectionData(source="coco", path=str(path)))
    listing, tally = records.file, Tally()
    splits: dict[str, list[Photo]] = {split: records.inputs(split) for split in SPLITS}
    for photo, turn in zip(listing.inputs, check_sizes(listing.inputs), strict=True):
        if turn is not None:
            tally.keep(turn, [photo.name])
    counts = {
        split: Counter(
            (entry["category_id"], bool(entry.get("iscrowd")))
            for photo in photos
            for entry in photo.annotations
        )
        for split, photos in splits.items()
    }
    objects = {
        name: {split: counts[split][number, False] for split in SPLITS}
        for number, name in listing.categories.items()
    }
    numbers = {
        "images": {split: len(photos) for split, photos in splits.items()},
        "empty": {split: sum(not photo.annotations for photo in photos) for split, photos in splits.items()},
        "crowds": {
            split: sum(count for (_, crowd), count in own.items() if crowd) for split, own in counts.items()
        },
    }
    totals = {split: sum(row[split] for row in objects.values()) for split in SPLITS}
    shown = {name: row for name, row in numbers.items() if name != "crowds" or any(row.values())}
    sizes = [(photo.width, photo.height) for photos in splits.values() for photo in photos]
    left_out = f"{pluralize(len(listing.left_out), 'objects')}: {join_examples(listing.left_out, '; ')}"
    return Overview(
        {**objects, "all": totals, **shown},
        heading="category",
        how=records.describe_splits(),
        tally=tally + records.tally,
        notes={
            "masks": f"{'' if listing.has_masks else 'not '}of every object",
            "sizes": describe_sizes(sizes),
            "left out": left_out if listing.left_out else "",
        },
        objects=objects,
        **numbers,
        sizes=sizes,
        masks=listing.has_masks,
        left_out=listing.left_out,
    )

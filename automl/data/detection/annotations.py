"""An annotation file of COCO's layout, checked: categories, images, and what is in each.

Source: https://cocodataset.org/#format-data, "Object Detection".
"""

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from attention.errors import InputError
from automl.data.detection import masks
from automl.data.detection.objects import Objects

BEYOND = 1.0  # pixels that a box may reach over the edge by: annotators' tools round
DEGENERATE = 1e-4  # of the boxes may be of no area, as two of COCO's 860,001 are


@dataclass(frozen=True, kw_only=True)
class Listed:
    """An image in an annotation file, and its objects as the file has them."""

    number: int
    name: str
    width: int
    height: int
    annotations: list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Annotations:
    """categories: names by COCO's number, in that order. has_masks: whether every object has one."""

    file: Path
    categories: Mapping[int, str]
    images: Sequence[Listed]
    has_masks: bool


def read_annotations(file: Path) -> Annotations:
    """Read and check a whole file.

    Raises InputError, naming the file and the entry, for what is no such file, for a category without a name,
    a box that is outside of its image or has no area, a mask of another size than its image, and a file
    without objects. An image without objects is data.
    """
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read as JSON ({error})") from error
    lists = [content.get(key) if isinstance(content, dict) else None for key in ("images", "annotations")]
    listed = content.get("categories") if isinstance(content, dict) else None
    if not all(isinstance(one, list) and all(isinstance(e, dict) for e in one) for one in (*lists, listed)):
        raise InputError(f"{file} must have the lists `images`, `annotations` and `categories`, as COCO has")
    categories = _categories(file, listed)  # type: ignore[arg-type]
    images = {image.number: image for image in _images(file, lists[0])}  # type: ignore[arg-type]
    degenerate = []
    for entry in lists[1]:  # type: ignore[union-attr]
        said = f"{file}: annotation {entry.get('id')}"
        image = images.get(entry.get("image_id", None))
        if image is None:
            raise InputError(f"{said} is of image {entry.get('image_id')!r}, which is not listed")
        if entry.get("category_id") not in categories:
            raise InputError(f"{said} has category {entry.get('category_id')!r}, which is not listed")
        if _checked_box(said, entry, image):
            _check_mask(said, entry, image)
            image.annotations.append(entry)
        else:
            degenerate.append(f"{said} of {image.name} has a box of no area: {entry['bbox']}")
    objects = [entry for image in images.values() for entry in image.annotations]
    if degenerate and len(degenerate) > DEGENERATE * len(objects):
        raise InputError(f"{degenerate[0]}; a box is [left, top, width, height]")
    for said in degenerate:
        print(f"warning: left out: {said}", file=sys.stderr, flush=True)
    single = [entry for entry in objects if not entry.get("iscrowd")]
    if not single:
        raise InputError(f"{file} has no object that is not a crowd; there is nothing to learn or to find")
    return Annotations(
        file=file,
        categories=categories,
        images=list(images.values()),
        has_masks=all(entry.get("segmentation") for entry in objects),
    )


def _categories(file: Path, listed: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    found: dict[int, str] = {}
    for entry in listed:
        number, name = entry.get("id"), entry.get("name")
        if not isinstance(number, int):
            raise InputError(f"{file}: a category must have an `id`, a whole number; got {dict(entry)}")
        if not (isinstance(name, str) and name.strip()):
            raise InputError(f"{file}: category {number} must have a `name`; got {name!r}")
        if number in found:
            raise InputError(f"{file}: category {number} is listed twice: {found[number]!r} and {name!r}")
        found[number] = name
    for name, count in Counter(found.values()).items():
        if count > 1:
            raise InputError(f"{file}: {count} categories are called {name!r}; names must differ")
    if not found:
        raise InputError(f"{file} lists no categories")
    return dict(sorted(found.items()))


def _images(file: Path, listed: Sequence[Mapping[str, Any]]) -> Iterator[Listed]:
    seen: set[int] = set()
    for entry in listed:
        number, name = entry.get("id"), entry.get("file_name")
        if not isinstance(number, int) or number in seen:
            raise InputError(
                f"{file}: an image must have an `id`, a whole number of its own; got {number!r} of {name!r}"
            )
        if not (isinstance(name, str) and name) or Path(name).is_absolute() or ".." in Path(name).parts:
            raise InputError(
                f"{file}: image {number} must have a `file_name` below the folder of images; got {name!r}"
            )
        size = entry.get("width"), entry.get("height")
        if not all(isinstance(side, int) and side > 0 for side in size):
            raise InputError(f"{file}: image {number} ({name}) must have `width` and `height`; got {size}")
        seen.add(number)
        yield Listed(number=number, name=name, width=size[0], height=size[1], annotations=[])  # type: ignore[arg-type]


def _checked_box(said: str, entry: Mapping[str, Any], image: Listed) -> bool:
    """Whether it has an area. Raises InputError for a box that is none, or outside of its image."""
    box = entry.get("bbox")
    numbers = isinstance(box, list) and len(box) == 4 and all(isinstance(v, int | float) for v in box)
    if not numbers or not all(isfinite(v) for v in box):  # type: ignore[union-attr]
        raise InputError(f"{said} must have a `bbox`, [left, top, width, height]; got {box!r}")
    left, top, width, height = box  # type: ignore[misc]
    if width <= 0 or height <= 0:
        return False
    right, bottom = left + width, top + height
    if min(left, top) < -BEYOND or right > image.width + BEYOND or bottom > image.height + BEYOND:
        raise InputError(
            f"{said} has a box outside of its image {image.name} of {image.width} x {image.height} pixels: "
            f"{box}; a box is [left, top, width, height]"
        )
    return True


def _check_mask(said: str, entry: Mapping[str, Any], image: Listed) -> None:
    if entry.get("segmentation") and (
        wrong := masks.problem(entry["segmentation"], image.height, image.width)
    ):
        raise InputError(f"{said} of {image.name}: {wrong}")


def objects_of(
    annotations: Sequence[Mapping[str, Any]],
    labels: Mapping[int, int],
    size: tuple[int, int],
    *,
    masked: bool,
) -> Objects:
    """The objects of an image from annotations that have been checked.

    labels: from 1 on, by COCO's numbers of categories. size: height and width of the image.
    masked: whether to make masks.
    """
    height, width = size
    boxes = np.array([a["bbox"] for a in annotations], np.float64).reshape(-1, 4)
    ends = np.minimum(boxes[:, :2] + boxes[:, 2:], [width, height])
    boxes[:, :2] = boxes[:, :2].clip(min=0)
    boxes[:, 2:] = ends - boxes[:, :2]
    made = [masks.from_segmentation(a["segmentation"], *size) for a in annotations] if masked else None
    own = masks.area(made, *size) if made is not None else boxes[:, 2] * boxes[:, 3]
    areas = [
        a["area"] if isinstance(a.get("area"), int | float) else own[i] for i, a in enumerate(annotations)
    ]
    return Objects(
        boxes=boxes,
        labels=np.array([labels[a["category_id"]] for a in annotations], np.int64),
        crowd=np.array([bool(a.get("iscrowd")) for a in annotations], bool),
        areas=np.array(areas, np.float64),
        masks=made,
    )

"""Read and check an annotation file in COCO's layout: categories, images and their objects.

Source: https://cocodataset.org/#format-data, "Object Detection".
"""

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import Any, TypeGuard

import numpy as np

from automl.base.errors import InputError
from automl.base.text import read_text
from automl.data.files import normalise_nfc
from automl.data.tally import join_examples
from automl.tasks.detection.data import masks
from automl.tasks.detection.data.masks import Objects

MAX_OVERHANG = 1.0  # pixels by which a box may reach over the edge, since annotation tools round
MIN_SIDE = 0.01  # smallest side of a box in pixels; less vanishes in the 32 bits of a detector's boxes
MAX_WRONG = 0.01  # fraction of the objects that may be left out because they are wrong
MIN_OBJECTS_FOR_ONE = 10  # objects in a file from which on one of them may be wrong in any case
LISTS = ("images", "annotations", "categories")
LONGEST_NAME = 255  # bytes of a file's name


@dataclass(frozen=True, kw_only=True)
class ListedImage:
    """An image in an annotation file, and its objects as in the file."""

    number: int
    name: str
    width: int
    height: int
    annotations: list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Annotations:
    """The content of an annotation file.

    Attributes:
        categories: names by COCO's category id, in order of the ids.
        unused_parents: ids of categories without objects that are the `supercategory` of others.
        has_masks: whether every object has a mask.
        left_out: why objects were left out.
    """

    file: Path
    categories: Mapping[int, str]
    unused_parents: frozenset[int]
    images: Sequence[ListedImage]
    has_masks: bool
    left_out: Sequence[str]


def read_annotations(file: Path) -> Annotations:
    """Read and check a whole file. An image without objects is valid.

    An object is left out, with a warning, if its image or category is not listed, its box is outside its
    image or has no area, or its mask does not fit its image. Of several polygons only the invalid ones are
    left out.

    Raises InputError, which names the file and the entry, if the file is not an annotation file, a category
    or image is invalid, it has no objects, or more than MAX_WRONG of them are invalid.
    """
    content = read_content(file)
    listed = content["categories"]
    categories = _read_categories(file, listed)
    images = {image.number: image for image in _read_images(file, content["images"])}
    odd, dropped = [], []
    entries = content["annotations"]
    for entry in entries:
        wrong = _find_fault(entry, images, categories)
        if wrong is not None:
            odd.append(f"annotation {_shorten(entry.get('id'))} {wrong}")
            continue
        image = images[entry["image_id"]]
        masks_wrong: list[str] = []
        if entry.get("segmentation"):
            kept, masks_wrong = masks.filter_segmentation(entry["segmentation"], image.height, image.width)
            entry["segmentation"] = kept
        described = [f"annotation {_shorten(entry.get('id'))} of {image.name}: {why}" for why in masks_wrong]
        if described and entry["segmentation"] is None:
            odd.append(described[0])
            continue
        dropped += described
        image.annotations.append(entry)
    if len(odd) > max(int(MAX_WRONG * len(entries)), len(entries) >= MIN_OBJECTS_FOR_ONE):
        raise InputError(
            f"{file}: {odd[0]}. {len(odd)} of its {len(entries)} objects are wrong; at most one in a hundred "
            f"may be. Correct or remove them"
        )
    _warn(f"{len(odd)} of {len(entries)} objects of {file}", odd)
    _warn(f"{len(dropped)} polygons of {file}, whose objects have others", dropped)
    objects = [entry for image in images.values() for entry in image.annotations]
    if not any(not entry.get("iscrowd") for entry in objects):
        raise InputError(f"{file} must have objects that are not a crowd; it has none")
    unused = _find_parents(listed) - {entry["category_id"] for entry in objects}
    check_names(file, {number: name for number, name in categories.items() if number not in unused})
    return Annotations(
        file=file,
        categories=categories,
        unused_parents=unused,
        images=list(images.values()),
        has_masks=all(entry.get("segmentation") for entry in objects),
        left_out=[f"{file.name}: {why}" for why in odd],
    )


def read_content(file: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the lists of a file in COCO's layout, unchecked. Raises InputError for any other file."""
    try:
        content = json.loads(read_text(file))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{file} cannot be read as JSON ({error})") from error
    lists = [content.get(key) if isinstance(content, dict) else None for key in LISTS]
    if not all(isinstance(entries, list) and all(isinstance(e, dict) for e in entries) for entries in lists):
        raise InputError(f"{file} must have COCO's lists `images`, `annotations` and `categories`")
    return dict(zip(LISTS, lists, strict=True))  # type: ignore[arg-type]


def check_names(file: Path, categories: Mapping[int, str]) -> None:
    """Raise InputError if there are no categories, or two of one name."""
    for name, count in Counter(categories.values()).items():
        if count > 1:
            raise InputError(f"{file}: {count} categories are called {name!r}; names must differ")
    if not categories:
        raise InputError(f"{file} lists no categories")


def _warn(subject: str, reasons: Sequence[str]) -> None:
    if reasons:
        shown = join_examples(reasons, "; ")
        print(f"warning: left out: {subject}: {shown}", file=sys.stderr, flush=True)


def _shorten(value: object) -> str:
    """Return a value of the JSON as text of at most 60 characters for a message."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _is_number(value: object) -> TypeGuard[int]:
    """Return whether a value can be the id of an image or a category."""
    return isinstance(value, int) and not isinstance(value, bool)


def _read_categories(file: Path, listed: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    categories: dict[int, str] = {}
    for entry in listed:
        number, name = entry.get("id"), entry.get("name")
        if not _is_number(number):
            fault = f"a category must have an `id`, a whole number; got {_shorten(dict(entry))}"
        elif not (isinstance(name, str) and name.strip()):
            fault = f"category {number} must have a `name`; got {_shorten(name)}"
        elif number in categories:
            fault = f"category {number} is listed twice: {categories[number]!r} and {name!r}"
        else:
            categories[number] = normalise_nfc(name)
            continue
        raise InputError(f"{file}: {fault}")
    return dict(sorted(categories.items()))


def _find_parents(listed: Sequence[Mapping[str, Any]]) -> frozenset[int]:
    """Return the ids of categories that group others, such as Roboflow's category 0."""
    groups = {
        entry["supercategory"]
        for entry in listed
        if isinstance(entry.get("supercategory"), str) and entry["supercategory"] != "none"
    }
    return frozenset(
        entry["id"] for entry in listed if entry.get("supercategory") == "none" and entry["name"] in groups
    )


def _read_images(file: Path, listed: Sequence[Mapping[str, Any]]) -> Iterator[ListedImage]:
    seen: set[int] = set()
    for entry in listed:
        number, name = entry.get("id"), entry.get("file_name")
        size = entry.get("width"), entry.get("height")
        path = PureWindowsPath(name if isinstance(name, str) else "")  # accepts / and \\ as separators
        image, shown = f"image {number}", _shorten(name)
        if not _is_number(number) or number in seen:
            fault = (
                f"an image must have an `id`, a whole number of its own; got {_shorten(number)} of {shown}"
            )
        elif not path.parts or path.root or ".." in path.parts:
            fault = f"{image} must have a `file_name` below the folder of images; got {shown}"
        elif any(len(part.encode("utf-8", "surrogatepass")) > LONGEST_NAME for part in path.parts):
            length = f"more than {LONGEST_NAME} bytes, which no file can have"
            fault = f"{image} has a `file_name` of {length}: {shown}"
        elif not all(_is_number(side) and side > 0 for side in size):
            fault = f"{image} ({name}) must have `width` and `height`; got {_shorten(size)}"
        else:
            seen.add(number)
            yield ListedImage(number=number, name=name, width=size[0], height=size[1], annotations=[])  # type: ignore[arg-type]
            continue
        raise InputError(f"{file}: {fault}")


def _find_fault(
    entry: Mapping[str, Any], images: Mapping[int, ListedImage], categories: Mapping[int, str]
) -> str | None:
    """Return the fault of an object, except of its mask, as a phrase that follows its name."""
    number, category = entry.get("image_id"), entry.get("category_id")
    if not isinstance(number, int | float) or number not in images:
        return f"has the image {_shorten(number)}, which is not listed"
    if not isinstance(category, int | float) or category not in categories:
        return f"has category {_shorten(category)}, which is not listed"
    box, image = masks.parse_finite(entry.get("bbox")), images[int(number)]
    if box is None or len(box) != 4:
        return f"must have a `bbox`, [left, top, width, height]; got {_shorten(entry.get('bbox'))}"
    sides = np.array([image.width, image.height])
    low, high = box[:2], box[:2] + box[2:]
    if (box[2:] <= 0).any():
        return f"of {image.name} has a box of no area: {entry['bbox']}; a box is [left, top, width, height]"
    if (low < -MAX_OVERHANG).any() or (high > sides + MAX_OVERHANG).any():
        return (
            f"has a box outside of its image {image.name} of {image.width} x {image.height} pixels: "
            f"{entry['bbox']}; a box is [left, top, width, height]"
        )
    if (high.clip(max=sides) - low.clip(min=0) < MIN_SIDE).any():
        return f"of {image.name} has a box of no area: {entry['bbox']}; a box is [left, top, width, height]"
    return None


def build_objects(
    annotations: Sequence[Mapping[str, Any]],
    labels: Mapping[int, int],
    size: tuple[int, int],
    *,
    masked: bool,
) -> Objects:
    """Build the objects of an image of `size`, height and width. `labels` counts category ids from 1."""
    height, width = size
    boxes = np.array([a["bbox"] for a in annotations], np.float64).reshape(-1, 4)
    ends = np.minimum(boxes[:, :2] + boxes[:, 2:], [width, height])
    boxes[:, :2] = boxes[:, :2].clip(min=0)
    boxes[:, 2:] = ends - boxes[:, :2]
    encoded = [masks.encode_segmentation(a["segmentation"], *size) for a in annotations] if masked else None
    own = masks.mask_areas(encoded, *size) if encoded is not None else boxes[:, 2] * boxes[:, 3]
    areas = [_area(a.get("area"), float(own[i]), height * width) for i, a in enumerate(annotations)]
    return Objects(
        boxes=boxes,
        labels=np.array([labels[a["category_id"]] for a in annotations], np.int64),
        crowd=np.array([bool(a.get("iscrowd")) for a in annotations], bool),
        areas=np.array(areas, np.float64),
        masks=encoded,
    )


def _area(stated: object, own: float, most: float) -> float:
    """Return the area that a file states for an object, or the computed one if that is impossible."""
    return float(stated) if isinstance(stated, int | float) and 0 < stated <= most else own

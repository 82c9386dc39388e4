"""Photos with their objects, and masks of objects in the formats of pycocotools: polygons and run lengths.

Source: T.-Y. Lin et al., Microsoft COCO (2014), arXiv 1405.0312, and its tools.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from automl.base.errors import InputError
from automl.base.lazy import optional
from automl.data.arrow import map_in_threads
from automl.data.pictures import read_size
from automl.data.records import Item
from automl.data.tally import join_examples

Rle = bytes  # the counts of a mask's run lengths, as pycocotools compresses them


@dataclass(frozen=True, kw_only=True)
class Objects:
    """N objects of an image.

    Attributes:
        boxes: left, top, width and height in pixels, float64 `(N, 4)`.
        labels: int64 `(N,)`, from 1 on.
        crowd: whether a box surrounds many objects that are not separated, bool `(N,)`. Crowds are not
            learned from, and detections in them are neither right nor wrong.
        areas: area of the mask or box in square pixels, float64 `(N,)`. It decides if an object is small,
            medium or large.
        masks: run lengths of each mask at the size of the image; None if they are unknown.
    """

    boxes: np.ndarray
    labels: np.ndarray
    crowd: np.ndarray
    areas: np.ndarray
    masks: list[Rle] | None = None

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, kw_only=True)
class Photo(Item):
    """An image that is not decoded yet, and its objects.

    Attributes:
        annotations: the objects as in their file.
        key: the SHA-256 of the pixels.
        content: the SHA-256 of pixels and annotations.
        label: 0 for all, so that the split does not depend on classes.
    """

    label: int = 0
    width: int
    height: int
    annotations: list[dict[str, Any]] = field(default_factory=list)


def check_sizes(photos: Sequence[Photo]) -> list[str | None]:
    """Return how EXIF turns each image when it is decoded; None for those that it does not turn.

    Raises InputError if images have another size than in their annotations, or cannot be read.
    """
    turns, wrong = [], []
    for turn, fault in map_in_threads("reading sizes of images", photos, _compare):
        turns.append(turn)
        wrong += [fault] if fault else []
    if wrong:
        count = f" ({len(wrong)} of {len(photos)} images are wrong)" if len(wrong) > 1 else ""
        raise InputError(join_examples(wrong, "; ") + count)
    return turns


def _compare(photo: Photo) -> tuple[str | None, str | None]:
    """Return how an image is turned, and its fault."""
    if not isinstance(photo.image, Path):
        return None, None
    try:
        size, turn = read_size(photo.image, (photo.width, photo.height))
    except MemoryError:
        raise
    except Exception as error:  # Pillow raises nearly any error for a damaged file.
        return None, describe_undecodable(photo.image, error)
    annotated = (photo.width, photo.height)
    return turn, None if size == annotated else describe_size_mismatch(photo.image, size, annotated)


def scale_size(width: int, height: int, size: int) -> tuple[int, int]:
    """Return the width and height of an image scaled to at most `size` pixels at the longer side."""
    scale = min(1.0, size / max(width, height))
    return max(1, round(width * scale)), max(1, round(height * scale))


def describe_undecodable(image: Path | str, error: Exception) -> str:
    """Return a message about an image that cannot be decoded."""
    why = f"{type(error).__name__}: {error}"
    return f"{image} cannot be decoded ({why}); repair it, or remove it and its annotations"


def describe_size_mismatch(image: Path | str, size: tuple[int, int], annotated: tuple[int, int]) -> str:
    """Return a message about an image with another size than in its annotations."""
    return (
        f"{image} has {size[0]} x {size[1]} pixels, but its annotations say {annotated[0]} x {annotated[1]}"
    )


coco = optional("pycocotools.mask", "detection")

MAX_RUN_BITS = 35  # per run length in a compressed string, since pycocotools shifts 32-bit numbers


def encode_masks(masks: np.ndarray) -> list[Rle]:
    """Return the run lengths of masks, bool or uint8 `(N, H, W)`."""
    packed = np.asfortranarray(masks.astype(np.uint8).transpose(1, 2, 0))
    return [each["counts"] for each in coco.encode(packed)]


def decode_masks(masks: Sequence[Rle], height: int, width: int) -> np.ndarray:
    """Return masks, uint8 `(N, H, W)`, from their run lengths."""
    if not masks:
        return np.zeros((0, height, width), np.uint8)
    pixels: np.ndarray = coco.decode([{"size": [height, width], "counts": counts} for counts in masks])
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def mask_areas(masks: Sequence[Rle], height: int, width: int) -> np.ndarray:
    """Return the number of pixels of each mask, float64 `(N,)`."""
    if not masks:
        return np.zeros(0)
    return np.asarray(coco.area([{"size": [height, width], "counts": c} for c in masks]), np.float64)


def filter_segmentation(segmentation: Any, height: int, width: int) -> tuple[Any, list[str]]:
    """Return a segmentation without invalid polygons, None if nothing is left, and the faults."""
    if isinstance(segmentation, list) and segmentation:
        wrong = [_polygon_problem(polygon, height, width) for polygon in segmentation]
        good = [polygon for polygon, why in zip(segmentation, wrong, strict=True) if why is None]
        return good or None, [why for why in wrong if why is not None]
    why = _mask_problem(segmentation, height, width)
    return (segmentation, []) if why is None else (None, [why])


def parse_finite(values: Any) -> np.ndarray | None:
    """Return a list of numbers as float64 `(N,)`; None if it is no list of finite numbers."""
    if not isinstance(values, list) or not all(type(value) in (int, float) for value in values):
        return None
    try:
        numbers = np.array(values, np.float64)
    except OverflowError:  # an integer of more than 308 digits
        return None
    return numbers if np.isfinite(numbers).all() else None


def _polygon_problem(polygon: Any, height: int, width: int) -> str | None:
    """Return the fault of a polygon; None if it is valid."""
    # pycocotools walks along every edge pixel by pixel, and writes beyond its memory if an edge is too long.
    # A polygon that reaches further beyond the image than the image is large is therefore rejected.
    shown = str(polygon)[:60]
    numbers = parse_finite(polygon)
    if numbers is None or len(numbers) < 6 or len(numbers) % 2:
        return f"a polygon must be x, y, x, y, ... of three points or more; got {shown}"
    x, y = numbers.reshape(-1, 2).T
    for values, side in ((x, width), (y, height)):
        low, high = values.min(), values.max()
        if low < -side or high > 2 * side or low >= side or high <= 0:
            return f"a polygon lies outside of its image of {width} x {height} pixels; got {shown}"
    if np.dot(x, np.roll(y, 1)) == np.dot(y, np.roll(x, 1)):
        return f"a polygon encloses no area; got {shown}"
    return None


def _mask_problem(segmentation: Any, height: int, width: int) -> str | None:
    if not isinstance(segmentation, dict):
        return f"its segmentation must be a list of polygons, or run lengths; got {str(segmentation)[:60]!r}"
    size, counts = segmentation.get("size"), segmentation.get("counts")
    if size != [height, width]:
        shown = str(size)[:60]
        return f"its mask has size {shown} (height, width), but the image has {[height, width]}"
    if isinstance(counts, list):
        whole = all(isinstance(n, int) and n >= 0 for n in counts) and sum(counts) == height * width
        return None if whole else f"the run lengths of its mask must sum to {height * width}"
    if not isinstance(counts, str):
        return "its mask must have `counts`, a list of run lengths or a string"
    return _run_length_problem(counts, height, width)


def _run_length_problem(letters: str, height: int, width: int) -> str | None:
    """Return why a string is not the run lengths of such an image, beyond which pycocotools would write."""
    total, runs, value, shift = 0, [0, 0], 0, 0
    for i, letter in enumerate(letters):
        code = ord(letter) - 48
        if not 0 <= code < 64:
            return f"the run lengths of its mask have an invalid letter {letter!r} at {i}"
        value |= (code & 0x1F) << shift
        shift += 5
        if shift > MAX_RUN_BITS:
            return f"a run of its mask has more letters than any length needs, at {i}"
        if code & 0x20:
            continue
        if code & 0x10:
            value |= -1 << shift
        if len(runs) > 4:
            value += runs[-2]
        if value < 0:
            return "a run of its mask has a length below 0"
        runs.append(value)
        total, value, shift = total + value, 0, 0
    if shift or total != height * width:
        return f"the run lengths of its mask sum to {total}, but the image has {height * width} pixels"
    return None


def encode_segmentation(segmentation: Any, height: int, width: int) -> Rle:
    """Return the run lengths of a segmentation in any format, without a fault."""
    if isinstance(segmentation, list):
        merged: dict[str, Any] = coco.merge(coco.frPyObjects(segmentation, height, width))
    elif isinstance(segmentation["counts"], list):
        merged = coco.frPyObjects({"size": [height, width], "counts": segmentation["counts"]}, height, width)
    else:
        return bytes(segmentation["counts"].encode())
    encoded: Rle = merged["counts"]
    return encoded


def resize_masks(masks: Sequence[Rle], old: tuple[int, int], new: tuple[int, int]) -> list[Rle]:
    """Resize masks to the nearest pixel. `old` and `new` are height and width."""
    if old == new:
        return list(masks)
    rows, columns = (((np.arange(n) + 0.5) * o / n).astype(int) for o, n in zip(old, new, strict=True))
    # Decode one mask at a time: a photograph of a crowd has many, each as large as the photograph.
    return [encode_masks(decode_masks([mask], *old)[:, rows][:, :, columns])[0] for mask in masks]

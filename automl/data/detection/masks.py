"""Masks of objects: polygons and run lengths, as pycocotools has them.

Source: T.-Y. Lin et al., Microsoft COCO (2014), arXiv 1405.0312, and its tools.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from pycocotools import mask as coco

from automl.data.detection.objects import Rle


def encode(masks: np.ndarray) -> list[Rle]:
    """Run lengths of masks, bool or uint8 (N, height, width)."""
    packed = np.asfortranarray(masks.astype(np.uint8).transpose(1, 2, 0))
    return [each["counts"] for each in coco.encode(packed)]


def decode(masks: Sequence[Rle], height: int, width: int) -> np.ndarray:
    """The masks, uint8 (N, height, width)."""
    if not masks:
        return np.zeros((0, height, width), np.uint8)
    found: np.ndarray = coco.decode([{"size": [height, width], "counts": counts} for counts in masks])
    return np.ascontiguousarray(found.transpose(2, 0, 1))


def area(masks: Sequence[Rle], height: int, width: int) -> np.ndarray:
    """Pixels of each, float64 (N,)."""
    if not masks:
        return np.zeros(0)
    return np.asarray(coco.area([{"size": [height, width], "counts": c} for c in masks]), np.float64)


def problem(segmentation: Any, height: int, width: int) -> str | None:
    """What is wrong with a mask of an image of this size, in words; None where nothing is."""
    if isinstance(segmentation, dict):
        size, counts = segmentation.get("size"), segmentation.get("counts")
        if size != [height, width]:
            return f"its mask is of size {size} (height, width), and the image of {[height, width]}"
        if isinstance(counts, list):
            whole = all(isinstance(n, int) and n >= 0 for n in counts) and sum(counts) == height * width
            return None if whole else f"the run lengths of its mask must sum to {height * width}"
        if not isinstance(counts, str):
            return "its mask must have `counts`, a list of run lengths or a string"
        return _broken(segmentation, height, width)
    if not (isinstance(segmentation, list) and segmentation):
        return f"its segmentation must be a list of polygons, or run lengths; got {str(segmentation)[:60]!r}"
    for polygon in segmentation:
        numbers = isinstance(polygon, list) and all(isinstance(v, int | float) for v in polygon)
        if not numbers or len(polygon) < 6 or len(polygon) % 2 or not np.isfinite(polygon).all():
            return f"a polygon must be x, y, x, y, ... of three points or more; got {str(polygon)[:60]}"
    return None


def _broken(segmentation: dict[str, Any], height: int, width: int) -> str | None:
    """Whether a compressed string is of another number of pixels than it says.

    pycocotools would write beyond the end of the image, so the numbers are added up here.
    """
    total, runs, value, shift = 0, [0, 0], 0, 0
    for i, letter in enumerate(segmentation["counts"]):
        code = ord(letter) - 48
        if not 0 <= code < 64:
            return f"the run lengths of its mask have a letter {letter!r} at {i}, which is none of them"
        value |= (code & 0x1F) << shift
        shift += 5
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
        return f"the run lengths of its mask sum to {total}, and the image has {height * width} pixels"
    return None


def from_segmentation(segmentation: Any, height: int, width: int) -> Rle:
    """Run lengths of polygons, or of run lengths in either form, of which `problem` has found nothing."""
    if isinstance(segmentation, list):
        merged: dict[str, Any] = coco.merge(coco.frPyObjects(segmentation, height, width))
    elif isinstance(segmentation["counts"], list):
        merged = coco.frPyObjects(segmentation, height, width)
    else:
        counts: bytes = segmentation["counts"].encode()
        return counts
    found: Rle = merged["counts"]
    return found


def resized(masks: Sequence[Rle], old: tuple[int, int], new: tuple[int, int]) -> list[Rle]:
    """Masks of another size: that of the nearest pixel. old, new: height and width."""
    if old == new:
        return list(masks)
    rows, columns = (((np.arange(n) + 0.5) * o / n).astype(int) for o, n in zip(old, new, strict=True))
    # One by one: a photograph of a crowd has many, and each is as large as the photograph.
    return [encode(decode([mask], *old)[:, rows][:, :, columns])[0] for mask in masks]

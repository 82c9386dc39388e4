"""The objects of an image: boxes, categories and masks."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from automl.data.items import Item

Rle = bytes  # the counts of a mask's run lengths, as pycocotools compresses them


@dataclass(frozen=True, kw_only=True)
class Objects:
    """N objects of an image of `width` x `height` pixels.

    boxes: float64 (N, 4), left, top, width and height in pixels. labels: int64 (N,), from 1 on.
    crowd: bool (N,), of a box around many objects that are not told apart: not learned from, and neither
        right nor wrong where it is found.
    areas: float64 (N,), of masks or boxes in square pixels, by which objects are small, medium or large.
    masks: run lengths of each, of the size of the image; None where they are not known.
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

    annotations: of the objects, as their file has them. key: the SHA-256 of the pixels. content: of pixels
    and annotations. label: of one class for all, by which they are split.
    """

    label: int = 0
    width: int
    height: int
    annotations: list[dict[str, Any]] = field(default_factory=list)

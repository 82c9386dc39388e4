"""Objects of an image: boxes, categories and masks."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from automl.data.records import Item

Rle = bytes  # the counts of a mask's run lengths, as pycocotools compresses them


@dataclass(frozen=True, kw_only=True)
class Objects:
    """N objects of an image of `width` x `height` pixels.

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

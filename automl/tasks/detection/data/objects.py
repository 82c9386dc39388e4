"""Photos with their objects: boxes, categories and masks, and the check of their sizes without decoding."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from automl.base.errors import InputError
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


def describe_undecodable(image: Path, error: Exception) -> str:
    """Return a message about an image that cannot be decoded."""
    why = f"{type(error).__name__}: {error}"
    return f"{image} cannot be decoded ({why}); repair it, or remove it and its annotations"


def describe_size_mismatch(image: Path | str, size: tuple[int, int], annotated: tuple[int, int]) -> str:
    """Return a message about an image with another size than in its annotations."""
    return (
        f"{image} has {size[0]} x {size[1]} pixels, but its annotations say {annotated[0]} x {annotated[1]}"
    )

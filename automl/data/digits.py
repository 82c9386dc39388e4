"""The handwritten digits of scikit-learn, and scenes of overlapping ones with the visible pixels of each.

Each of the 1,797 digits is in the scenes of only one split. All random numbers come from a fixed seed, so
every machine has the same scenes.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image


@cache
def read_digits() -> tuple[np.ndarray, np.ndarray]:
    """Return images, uint8 `(1797, 8, 8)` from 0 to 16, and labels, int64 `(1797,)`, as `load_digits` does.

    The file of scikit-learn is read directly, since importing the library takes each process of a trial a
    second.
    """
    library = find_spec("sklearn")
    assert library is not None
    assert library.origin is not None
    file = Path(library.origin).parent / "datasets" / "data" / "digits.csv.gz"
    table = np.loadtxt(file, delimiter=",", dtype=np.uint8)
    images, labels = table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(np.int64)
    images.flags.writeable = labels.flags.writeable = False  # All callers share the arrays.
    return images, labels


SIDE = 96
COUNTS: Mapping[str, int] = {"train": 800, "validation": 200, "test": 200}
NAMES: Mapping[str, str] = {"train": "train", "validation": "val", "test": "test"}  # folder of each split
FRACTIONS = (0.66, 0.83)  # of the digits, at which the training and the validation digits end
SMALLEST, LARGEST = 22, 44  # side of a digit in pixels
MOST = 6  # digits in a scene
SEEN = 0.5  # smallest visible fraction of a digit
INK = 64  # of 255: brightness from which a pixel of a digit belongs to the object


class Scene(NamedTuple):
    """An image and its objects.

    Attributes:
        image: uint8 `(H, W, 3)`.
        masks: the visible pixels of each digit, bool `(H, W)`.
        categories: each digit plus 1.
    """

    split: str
    name: str
    image: np.ndarray
    masks: list[np.ndarray]
    categories: list[int]


def draw_scenes() -> Iterator[Scene]:
    """Draw all scenes, in about a second."""
    images, labels = read_digits()
    draw = np.random.default_rng(0)
    order = draw.permutation(len(labels))
    ends = [round(fraction * len(order)) for fraction in FRACTIONS]
    for (split, count), own in zip(COUNTS.items(), np.split(order, ends), strict=True):
        for i in range(count):
            yield Scene(split, f"{NAMES[split]}/{i:04}.png", *_draw_scene(images[own], labels[own], draw))


def _draw_scene(
    digits: np.ndarray, labels: np.ndarray, draw: np.random.Generator
) -> tuple[np.ndarray, list[np.ndarray], list[int]]:
    canvas = _scale(draw.uniform(0, 70, (6, 6, 3)), SIDE) + draw.normal(0, 8, (SIDE, SIDE, 3))
    seen: list[np.ndarray] = []
    categories: list[int] = []
    for _ in range(draw.integers(0, MOST + 1)):
        chosen, side = draw.integers(len(digits)), int(draw.integers(SMALLEST, LARGEST + 1))
        left, top = draw.integers(0, SIDE - side + 1, 2)
        ink = np.zeros((SIDE, SIDE))
        ink[top : top + side, left : left + side] = _scale(digits[chosen] * (255 / 16), side)
        shape = ink > INK
        colour = draw.uniform(130, 255, 3)
        if any((old & ~shape).sum() < SEEN * old.sum() for old in seen):
            continue  # It would hide too much of another digit.
        opaque = np.clip(ink / 160, 0, 1)[..., None]
        canvas = canvas * (1 - opaque) + colour * opaque
        seen = [old & ~shape for old in seen] + [shape]
        categories.append(int(labels[chosen]) + 1)
    return np.clip(canvas.round(), 0, 255).astype(np.uint8), seen, categories


def _scale(values: np.ndarray, side: int) -> np.ndarray:
    """Resize `(h, w)` or `(h, w, 3)` to `side` pixels with bicubic interpolation."""
    planes = values[..., None] if values.ndim == 2 else values
    resized = [
        np.asarray(Image.fromarray(plane.astype(np.float32)).resize((side, side), Image.Resampling.BICUBIC))
        for plane in planes.transpose(2, 0, 1)
    ]
    return resized[0] if values.ndim == 2 else np.stack(resized, axis=2)

"""Fixtures of the tests of segmentation: a folder of images and masks from the bundled scenes."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from automl.data import digits as scenes
from automl.tasks.segmentation import SegmentationModel

SMALL = SegmentationModel(options={"width": 0.125})
NAMES = ["background", *"0123456789"]


@contextmanager
def few_scenes(train: int, others: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scenes, "COUNTS", {"train": train, "validation": others, "test": others})
        yield


def mask_of(scene: scenes.Scene) -> np.ndarray:
    mask = np.zeros(scene.image.shape[:2], np.uint8)
    for category, where in zip(scene.categories, scene.masks, strict=True):
        mask[where] = category
    return mask


def save(root: Path, name: str, image: np.ndarray, mask: np.ndarray, masks: str = "masks") -> None:
    """Write an image and its mask, which has a palette."""
    files = root / "images" / f"{name}.jpg", root / masks / f"{name}.png"
    for file, values in zip(files, (image, mask), strict=True):
        file.parent.mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray(values)
        if values.ndim == 2:
            picture.putpalette(list(range(256)) * 3)
        picture.save(file)


def write_folder(root: Path, count: int) -> Path:
    """Write the first `count` scenes, without splits."""
    for i, scene in enumerate(islice(scenes.draw_scenes(), count)):
        save(root, f"{i:04}", scene.image, mask_of(scene))
    (root / "classes.txt").write_text("\n".join(NAMES))
    return root

"""Fixtures of the tests of detection: a small detector, and few of the bundled scenes."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from automl.data import digits
from automl.tasks.detection import DetectionModel
from automl.tasks.detection import task as detection
from automl.tasks.detection.data.dataset import read_scenes
from automl.tasks.detection.data.masks import Photo

SMALL = DetectionModel(
    options={"width": 0.125},
    channels=8,
    representation=16,
    anchor=12,
    proposals=20,
    regions=16,
    detections=5,
    norm="group",
)


@contextmanager
def few_scenes(train: int, others: int) -> Iterator[None]:
    read_scenes.cache_clear()
    detection.load_images.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digits, "COUNTS", {"train": train, "validation": others, "test": others})
        yield
    read_scenes.cache_clear()
    detection.load_images.cache_clear()


def write_scenes(folder: Path, counts: Mapping[str, int] = digits.COUNTS) -> None:
    """Write the first `counts` scenes of each split as a folder in COCO's layout."""
    listing = read_scenes()
    for split, count in counts.items():
        name = digits.NAMES[split]
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / "annotations").mkdir(exist_ok=True)
        photos = listing.splits[split][:count]
        for photo in photos:
            Image.fromarray(np.asarray(photo.image)).save(folder / photo.name)
        content = {
            "images": [_make_image_entry(i, photo) for i, photo in enumerate(photos, start=1)],
            "annotations": _number_annotations(photos),
            "categories": [{"id": number, "name": label} for number, label in listing.categories.items()],
        }
        (folder / "annotations" / f"instances_{name}.json").write_text(json.dumps(content))


def _make_image_entry(number: int, photo: Photo) -> dict[str, Any]:
    return {"id": number, "file_name": Path(photo.name).name, "width": photo.width, "height": photo.height}


def _number_annotations(photos: Sequence[Photo]) -> list[dict[str, Any]]:
    pairs = [(number, a) for number, photo in enumerate(photos, start=1) for a in photo.annotations]
    return [{"id": i, "image_id": number, **a} for i, (number, a) in enumerate(pairs, start=1)]

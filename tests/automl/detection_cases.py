"""Fixtures of the tests of detection: a small detector, and few of the bundled scenes."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from automl.data.detection import scenes
from automl.tasks import detection
from search.config import DetectionModel

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
    scenes.read_scenes.cache_clear()
    detection.load_images.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scenes, "COUNTS", {"train": train, "validation": others, "test": others})
        yield
    scenes.read_scenes.cache_clear()
    detection.load_images.cache_clear()

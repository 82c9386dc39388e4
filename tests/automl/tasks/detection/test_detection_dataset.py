"""Test the splits of detection data, the bundled scenes, and decoded splits in a storage."""

import json
from pathlib import Path

import numpy as np
import pytest

from automl.base.errors import InputError
from automl.data.digits import SEEN
from automl.tasks.detection import DetectionData
from automl.tasks.detection.data import masks, open_split
from tests.helpers.detection_cases import write_scenes

pytestmark = pytest.mark.usefixtures("cache")


def test_boxes_and_masks_of_scenes_agree() -> None:
    images = open_split(DetectionData(source="scenes", size=96), "train")
    assert (len(images), images.classes, images.has_masks) == (800, tuple("0123456789"), True)
    all_objects = [images.objects(i) for i in range(len(images))]
    assert any(len(objects) == 0 for objects in all_objects)
    assert {int(label) for objects in all_objects for label in objects.labels} == set(range(1, 11))
    overlaps = 0
    for i in range(50):
        objects = all_objects[i]
        assert objects.masks is not None
        shapes = masks.decode_masks(objects.masks, 96, 96)
        assert (shapes.sum(0) <= 1).all()  # Masks cover only visible pixels.
        for (left, top, width, height), shape, area in zip(objects.boxes, shapes, objects.areas, strict=True):
            rows, columns = np.nonzero(shape)
            assert (left, top) == (columns.min(), rows.min())
            assert (left + width, top + height) == (columns.max() + 1, rows.max() + 1)
            assert area == shape.sum()
        corners = np.concatenate([objects.boxes[:, :2], objects.boxes[:, :2] + objects.boxes[:, 2:]], axis=1)
        for first in range(len(objects)):
            for second in range(first):
                low = np.maximum(corners[first, :2], corners[second, :2])
                overlaps += (low < np.minimum(corners[first, 2:], corners[second, 2:])).all()
    assert overlaps > 5
    assert 0 < SEEN < 1


def test_a_subset_without_objects_is_refused(tmp_path: Path) -> None:
    write_scenes(tmp_path, {"train": 5, "validation": 5, "test": 5})
    file = tmp_path / "annotations" / "instances_train.json"
    content = json.loads(file.read_text())
    (kept,) = open_split(
        DetectionData(source="coco", path=str(tmp_path), size=96, subset=1e-6), "train"
    ).names()
    number = next(each["id"] for each in content["images"] if kept.endswith(each["file_name"]))
    content["annotations"] = [each for each in content["annotations"] if each["image_id"] != number]
    file.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"the train split has 1 image without objects"):
        open_split(DetectionData(source="coco", path=str(tmp_path), size=96, subset=1e-6), "train")

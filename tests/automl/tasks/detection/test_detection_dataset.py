"""Test the splits of detection data, the bundled scenes, and decoded splits in a storage."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import ExifTags, Image

from automl.tasks.detection import DetectionData
from automl.tasks.detection.data import open_detection_records, open_split
from automl.tasks.detection.data.dataset import read_scenes, summarise_detection
from tests.helpers.detection_cases import write_scenes
from tests.helpers.segmentation_cases import few_scenes

pytestmark = pytest.mark.usefixtures("cache")

SPLITS = ("train", "validation", "test")


def test_scenes_of_a_seed_are_the_same() -> None:
    digests = []
    with few_scenes(12, 6):
        for _ in range(2):
            read_scenes.cache_clear()
            digests.append(open_detection_records(DetectionData(source="scenes")).manifest().digest)
    read_scenes.cache_clear()
    assert digests[0] == digests[1]


@pytest.mark.parametrize(
    ("counts", "expected_text"),
    [
        ({"train": 60, "validation": 20, "test": 10}, dict.fromkeys(SPLITS, "the dataset's own")),
        ({"train": 60, "validation": 40}, {"test": "about 50% of the validation images, .*"}),
        ({"train": 100}, {"test": "about 20% of all images, .*", "train": ".*, less those for validation"}),
        ({"train": 80, "test": 30}, {"validation": "about 20% of .*", "test": "the dataset's own"}),
    ],
    ids=["all", "no test", "train alone", "no validation"],
)
def test_splits_are_held_out(
    tmp_path: Path, counts: Mapping[str, int], expected_text: Mapping[str, str]
) -> None:
    path = str(tmp_path / "made")
    write_scenes(Path(path), counts)
    splits = {split: open_split(DetectionData(source="coco", path=path, size=64), split) for split in SPLITS}
    names = [name for images in splits.values() for name in images.names()]
    assert len(names) == len(set(names)) == sum(counts.values())
    assert all(len(images) > 2 for images in splits.values())
    assert splits["train"].image(0).shape == (64, 64, 3)
    listed = open_detection_records(DetectionData(source="coco", path=path)).manifest()
    rows = [(split, name) for split, name, *_ in listed.rows()]
    assert rows == [(split, name) for split, images in splits.items() for name in images.names()]
    for split, text in expected_text.items():
        assert re.fullmatch(
            text, open_detection_records(DetectionData(source="coco", path=path)).describe_splits()[split]
        )


RED = np.array([230, 20, 20], np.uint8)
BACK = {3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}


@pytest.mark.parametrize("kind", ["jpg", "png", "tif"])
@pytest.mark.parametrize(
    ("orientation", "size", "of", "expected_text"),
    [
        (1, (64, 48), "upright", ""),
        (6, (64, 48), "upright", "inputs      4 turned upright by their EXIF orientation: train/0"),
        (8, (64, 48), "stored", "inputs      4 not turned upright, since their annotations"),
        (3, (64, 48), "upright", "inputs      4 turned upright by EXIF (square, so it is unknown"),
        (8, (48, 48), "upright", "inputs      4 turned upright by EXIF (square, so it is unknown"),
    ],
)
def test_boxes_match_images_turned_by_exif(
    orientation: int, size: tuple[int, int], of: str, expected_text: str, kind: str, tmp_path: Path
) -> None:
    """The annotations (`of`) are of the upright or of the stored image, which the size tells."""
    (tmp_path / "annotations").mkdir()
    for split in ("train", "val"):
        (tmp_path / split).mkdir()
        images: list[dict[str, Any]] = []
        for i in range(4):
            seen = np.full((*size[::-1], 3), 10 * i + len(split), np.uint8)
            seen[4:16, 6:26] = RED
            stored = Image.fromarray(seen)
            if orientation in BACK:
                stored = stored.transpose(BACK[orientation])
            if of == "stored":
                seen = np.asarray(stored)
            exif = Image.Exif()
            exif[ExifTags.Base.Orientation] = orientation
            stored.save(tmp_path / split / f"{i}.{kind}", exif=exif)
            height, width = seen.shape[:2]
            images.append({"id": i, "file_name": f"{i}.{kind}", "width": width, "height": height})
        rows, columns = (np.flatnonzero((seen == RED).all(2).any(axis)) for axis in (1, 0))
        box = [int(columns[0]), int(rows[0]), len(columns), len(rows)]
        reds = [{"id": i, "image_id": i, "category_id": 1, "bbox": box, "iscrowd": 0} for i in range(4)]
        content = {"images": images, "annotations": reds, "categories": [{"id": 1, "name": "red"}]}
        (tmp_path / "annotations" / f"instances_{split}.json").write_text(json.dumps(content))
    images = open_split(DetectionData(source="coco", path=str(tmp_path), size=64), "train")
    for i in range(4):
        left, top, width, height = images.objects(i).boxes[0].astype(int)
        inside = images.image(i)[top : top + height, left : left + width]
        assert np.abs(inside.astype(int) - RED).mean() < 30
    assert str(images.file.count_changes()).startswith(expected_text)
    lines = [line for line in summarise_detection(tmp_path).lines() if line.startswith("inputs   ")]
    assert "".join(lines).startswith(expected_text.replace(" 4 ", " 8 ")), "of both files"

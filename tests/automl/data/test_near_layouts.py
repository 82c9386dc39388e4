"""Folders that are nearly in the layout of a task are named, and never read as another task's data."""

import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from automl.base.errors import InputError
from automl.search.prepare import fit
from automl.task import task_of_data
from automl.task.overview import describe_data
from automl.tasks.segmentation import SegmentationData
from automl.tasks.segmentation.data import open_labelled_images
from search.config import TASKS

Cli = Callable[..., tuple[int, str, str]]


def images(*folders: Path, suffix: str = "png") -> None:
    for folder in folders:
        folder.mkdir(parents=True)
        for i in range(3):
            Image.new("RGB", (32, 32), (i, 0, 0)).save(folder / f"{i}.{suffix}")


def files(folder: Path, suffix: str, content: str = "0 1\n") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(3):
        (folder / f"{i}.{suffix}").write_text(content)


def jpeg_masks(root: Path) -> None:
    images(root / "images", root / "masks", suffix="jpg")


def masks_in_splits(root: Path) -> None:
    images(*(root / split / kind for split in ("train", "val") for kind in ("images", "masks")))


def other_case(root: Path) -> None:
    images(root / "Image", root / "Labels")


def in_a_folder(root: Path) -> None:
    jpeg_masks(root / "polyps")


def yolo(root: Path) -> None:
    for split in ("train", "val"):
        images(root / split / "images")
        files(root / split / "labels", "txt")
    files(root, "txt")  # more texts than images


def pascal_boxes(root: Path) -> None:
    images(root / "JPEGImages")
    files(root / "Annotations", "xml", "<annotation/>")


def coco_by_another_name(root: Path) -> None:
    images(root / "train2017", root / "val2017")
    (root / "train.json").write_text(json.dumps({"images": [], "annotations": []}))


def views(root: Path) -> None:
    images(root / "left", root / "right")


def kitti_without_disparities(root: Path) -> None:
    images(root / "training/image_2", root / "training/image_3")


def two_csv(root: Path) -> None:
    files(root, "csv")


# By the task: a part of the message, and makers of folders. Code and texts are known by the endings of most
# of their files, so nothing is nearly in their layout.
NEAR: Mapping[str, tuple[str, list[Callable[[Path], None]]]] = {
    "stereo": ("stereo pairs", [views, kitti_without_disparities]),
    "sequence-classification": ("sequences", [two_csv]),
    "code-retrieval": ("", []),
    "detection": ("images with objects", [yolo, pascal_boxes, coco_by_another_name]),
    "segmentation": ("images and their masks", [jpeg_masks, masks_in_splits, other_case, in_a_folder]),
    "language-modelling": ("", []),
}


def test_each_task_that_recognises_data_is_here() -> None:
    assert list(NEAR) == [name for name, spec in TASKS.items() if spec.detect]


@pytest.mark.parametrize(
    ("message", "make"), [(message, make) for message, makers in NEAR.values() for make in makers]
)
def test_nearly_a_layout(message: str, make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "data")
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        for file in (tmp_path / "data").rglob("*.*"):
            archive.write(file, file.relative_to(tmp_path))
    for path in (str(tmp_path / "data"), str(tmp_path / "data.zip")):
        for read in (task_of_data, describe_data, fit):
            with pytest.raises(InputError, match=f"looks like {message}.*--space folder"):
                read(path)  # type: ignore[operator]
        try:
            describe_data(path, space="folder")  # images by class, as was asked for
        except InputError as error:
            assert "looks like" not in str(error)  # noqa: PT017  # there may be too few


def test_classes_of_usual_names_are_images(tmp_path: Path) -> None:
    images(*(tmp_path / name for name in ("left", "right", "up", "masks", "labels")))
    files(tmp_path, "json", json.dumps({"made": "by me"}))
    assert task_of_data(str(tmp_path)) is None


def save_masks(root: Path, *values: int) -> SegmentationData:
    images(root / "images")
    (root / "masks").mkdir()
    for i in range(3):
        Image.fromarray(np.resize(np.uint8(values), (32, 32))).save(root / f"masks/{i}.png")
    return SegmentationData(path=str(root), size=32)


def test_grey_levels_are_no_labels(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"look like grey levels: of the labels 0 to 128 only 0, 128 occur"):
        open_labelled_images(save_masks(tmp_path / "grey", 0, 128, 255))
    assert len(open_labelled_images(save_masks(tmp_path / "rare", 0, 2, 3)).classes) == 4
    data = save_masks(tmp_path / "named", 0, 128)
    (tmp_path / "named/classes.txt").write_text("\n".join(f"class {i}" for i in range(129)))
    assert len(open_labelled_images(data).classes) == 129


@pytest.mark.parametrize(
    "options", [["--full", "2"], ["--max-cache", "1MB"], ["--distil", "0.5"], ["--backbone", "hf:/gone"]]
)
def test_options_say_that_source_files_are_texts(options: list[str], tmp_path: Path, cli: Cli) -> None:
    files(tmp_path, "py", "def add(a, b):\n    '''Add two numbers.'''\n    return a + b\n")
    assert fit(str(tmp_path)).settings["space"] == "codesearch"
    _, _, err = cli("search", "--data", str(tmp_path), *options, "--dry-run")
    assert "a test split needs two different documents" in err or "/gone does not exist" in err

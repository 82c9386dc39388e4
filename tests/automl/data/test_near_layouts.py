"""Folders that are nearly in the layout of a task are named, and never read as another task's data."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from automl.tasks.segmentation import SegmentationData

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


def save_masks(root: Path, *values: int) -> SegmentationData:
    images(root / "images")
    (root / "masks").mkdir()
    for i in range(3):
        Image.fromarray(np.resize(np.uint8(values), (32, 32))).save(root / f"masks/{i}.png")
    return SegmentationData(path=str(root), size=32)


def test_data_are_shown_as_the_space_reads_them(tmp_path: Path, cli: Cli) -> None:
    for i in range(40):
        (tmp_path / f"{i}.py").write_text(
            f"def add{i}(a):\n    '''Add {i} times.'''\n    return a{' + a' * i}\n"
        )
    assert "functions" in cli("data", str(tmp_path))[1]
    code, out, err = cli("data", str(tmp_path), "--space", "hybrid")
    assert code == 0, err
    assert "documents" in out
    assert f"automl search --space hybrid --data {tmp_path}" in out


def test_folders_are_no_commands_and_no_runs(tmp_path: Path, cli: Cli) -> None:
    folder = str(tmp_path)
    code, _, err = cli("referee", "--baseline", folder, "--candidate", f"{folder}/", "--metric", "acc")
    assert code == 2
    assert "a command must be a program" in err
    code, _, err = cli("compare", folder, folder)
    assert code == 2
    assert "automl referee compares training commands" in err

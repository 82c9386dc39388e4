"""Test folders of images and masks: layouts, faults and contents."""

import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from automl.base.errors import InputError
from automl.data import digits as scenes
from automl.tasks.segmentation import SegmentationData
from automl.tasks.segmentation.data import IGNORE, LabelledImages, is_segmentation, open_labelled_images
from tests.helpers.segmentation_cases import NAMES, few_scenes, mask_of, save

pytestmark = pytest.mark.usefixtures("cache")

DRAW = np.random.default_rng(0)


def picture(height: int = 64, width: int = 64) -> np.ndarray:
    return DRAW.integers(0, 256, (height, width, 3), np.uint8)


def labels(height: int = 64, width: int = 64, classes: int = 3) -> np.ndarray:
    return DRAW.integers(0, classes, (height, width), np.uint8)


def opened(root: Path, **options: int) -> LabelledImages:
    return open_labelled_images(SegmentationData(path=str(root), size=64, **options))


def names(images: LabelledImages) -> dict[str, list[str]]:
    return {s: [images.file.names[i] for i in images.rows(s)] for s in ("train", "validation", "test")}


def masks(images: LabelledImages, split: str = "train") -> np.ndarray:
    return images.tensors(torch.from_numpy(images.rows(split)), torch.device("cpu"))[1].numpy()


def fill(root: Path, *names: str, masks: str = "masks") -> Path:
    for name in names:
        save(root, name, picture(), labels(), masks)
    return root


def test_images_and_masks_match_their_files(tmp_path):
    image, mask = picture(), labels()
    mask[:3] = 255
    fill(tmp_path, "train/b", "val/c", "test/d")
    save(tmp_path, "train/a", image, mask)
    opened_images = opened(tmp_path)
    assert names(opened_images) == {
        "train": ["train/a.jpg", "train/b.jpg"],
        "validation": ["val/c.jpg"],
        "test": ["test/d.jpg"],
    }
    images, read = opened_images.tensors(
        torch.tensor([int(opened_images.rows("train")[0])]), torch.device("cpu")
    )
    assert (read[0].numpy() == mask).all()
    assert (images[0].numpy() == np.asarray(Image.open(tmp_path / "images/train/a.jpg"))).all()
    assert opened_images.classes == ["0", "1", "2"]


def test_images_are_resized_to_squares(tmp_path):
    fill(tmp_path, *"abcd")
    save(tmp_path, "wide", picture(100, 200), labels(100, 200))
    opened_images = opened(tmp_path)
    wide = opened_images.file.names.index("wide.jpg")
    assert opened_images.aspect[wide] == 2
    images, read = opened_images.tensors(torch.tensor([wide]), torch.device("cpu"))
    assert (images.shape, read.shape) == ((1, 64, 64, 3), (1, 64, 64))
    assert set(read.unique().tolist()) == {0, 1, 2}


@pytest.mark.parametrize("masks", ["masks", "annotations", "stuffthingmaps"])
def test_layout_of_coco_stuff_and_ade20k(tmp_path, masks):
    fill(tmp_path, "train2017/a", "train2017/b", "val2017/c", masks=masks)
    assert is_segmentation(tmp_path)
    names_of = names(opened(tmp_path))
    assert names_of["validation"] == ["val2017/c.jpg"]
    assert sorted(names_of["train"] + names_of["test"]) == ["train2017/a.jpg", "train2017/b.jpg"]


def test_layout_of_pascal_voc(tmp_path):
    fill(tmp_path, *"abcde", masks="SegmentationClass")
    os.rename(tmp_path / "images", tmp_path / "JPEGImages")
    save(tmp_path / "JPEGImages", "x", picture(), labels())  # a folder below, which no list names
    lists = tmp_path / "ImageSets" / "Segmentation"
    lists.mkdir(parents=True)
    for name, images in {"trainval": "abcde", "train": "abc", "val": "de"}.items():
        (lists / f"{name}.txt").write_text("\n".join(images) + "\n")
    assert is_segmentation(tmp_path)
    names_of = names(opened(tmp_path))
    assert names_of["validation"] == ["d.jpg", "e.jpg"]
    assert sorted(names_of["train"] + names_of["test"]) == ["a.jpg", "b.jpg", "c.jpg"]
    (lists / "val.txt").write_text("d\nmissing\n")
    with pytest.raises(InputError, match="missing"):
        opened(tmp_path)


def test_other_folders_are_groups(tmp_path):
    fill(tmp_path, *(f"patient{i}/{j}" for i in range(8) for j in range(3)))
    images = opened(tmp_path)
    groups = {split: {name.partition("/")[0] for name in members} for split, members in names(images).items()}
    assert sum(map(len, groups.values())) == 8 == len(set.union(*groups.values()))
    assert "group" in images.describe_splits()["test"]


def test_missing_and_damaged_masks_are_reported(tmp_path):
    fill(tmp_path, *"abcd")
    for name in "bc":
        (tmp_path / "masks" / f"{name}.png").unlink()
    with pytest.raises(InputError, match=r"Of 4 images 2 have none or do not exist: b\.jpg, c\.jpg"):
        opened(tmp_path)
    fill(tmp_path, *"abc")
    (tmp_path / "masks" / "a.png").write_bytes(b"no picture")
    with pytest.raises(InputError, match=r"a\.png cannot be read"):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (labels(32, 64), r"a\.jpg and its mask .*a\.png must have the same size; got \(64, 64\) and \(64"),
        (picture(), r"a\.png must be a mask: a PNG .* labels instead of colours; got one of Pillow's mode"),
        (np.full((64, 64), 7, np.uint8), r"a\.png has label 7, but classes\.txt names 3 classes, from 0 to"),
    ],
)
def test_invalid_mask_is_reported(tmp_path, mask, message):
    fill(tmp_path, *"bcd")
    save(tmp_path, "a", picture(), mask)
    (tmp_path / "classes.txt").write_text("sky\ntraffic light\nroad\n")
    with pytest.raises(InputError, match=message):
        opened(tmp_path)


def test_masks_of_one_class_are_refused(tmp_path):
    for name in "abc":  # The foreground is white.
        save(tmp_path, name, picture(), np.where(labels(classes=2) > 0, 255, 0).astype(np.uint8))
    message = re.escape("at least two classes; got [0] besides") + ".*must become 1"
    with pytest.raises(InputError, match=message):
        opened(tmp_path)


def test_another_label_can_be_ignored_and_255_always_is(tmp_path):
    mask = labels()
    mask[0] = 255
    for name in "abcd":
        save(tmp_path, name, picture(), mask)
    for ignored, labels_left in ((255, {0, 1, 2, IGNORE}), (0, {1, 2, IGNORE})):
        assert {*np.unique(masks(opened(tmp_path, ignore_index=ignored)))} == labels_left


def test_cache_depends_on_files_and_class_names(tmp_path):
    fill(tmp_path, *"abcd")
    first = opened(tmp_path)
    assert opened(tmp_path) is first
    (tmp_path / "classes.txt").write_text("sky\ntraffic light\nroad\n")
    assert opened(tmp_path).classes == ["sky", "traffic light", "road"]
    before = opened(tmp_path).manifest().digest
    save(tmp_path, "a", picture(), labels())
    assert opened(tmp_path).manifest().digest != before


def test_bundled_scenes_have_a_label_for_each_digit():
    with few_scenes(3, 2):
        drawn = list(scenes.draw_scenes())
        images = open_labelled_images(SegmentationData())
        assert images.classes == NAMES
        assert {split: len(images.rows(split)) for split in ("train", "test")} == {"train": 3, "test": 2}
        assert (masks(images) == np.stack([mask_of(scene) for scene in drawn[:3]])).all()

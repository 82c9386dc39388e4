"""Folders of images and masks: their layouts, what is wrong with one, and what is read of it."""

import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from segmentation_cases import NAMES, few_scenes, mask_of, save

from attention import InputError
from automl.data.detection import scenes
from automl.data.segmentation_data import IGNORE, LabelledImages, is_segmentation, open_images
from search.config import SegmentationData

DRAW = np.random.default_rng(0)


def picture(height: int = 64, width: int = 64) -> np.ndarray:
    return DRAW.integers(0, 256, (height, width, 3), np.uint8)


def labels(height: int = 64, width: int = 64, classes: int = 3) -> np.ndarray:
    return DRAW.integers(0, classes, (height, width), np.uint8)


def opened(root: Path, **given: int) -> LabelledImages:
    return open_images(SegmentationData(path=str(root), size=64, **given))


def names(images: LabelledImages) -> dict[str, list[str]]:
    return {s: [images.file.names[i] for i in images.rows(s)] for s in ("train", "validation", "test")}


def masks(images: LabelledImages, split: str = "train") -> np.ndarray:
    return images.tensors(torch.from_numpy(images.rows(split)), torch.device("cpu"))[1].numpy()


def fill(root: Path, *names: str, masks: str = "masks") -> Path:
    for name in names:
        save(root, name, picture(), labels(), masks)
    return root


def test_images_are_those_of_the_files_and_masks_their_labels(tmp_path):
    image, mask = picture(), labels()
    mask[:3] = 255
    fill(tmp_path, "train/b", "val/c", "test/d")
    save(tmp_path, "train/a", image, mask)
    found = opened(tmp_path)
    assert names(found) == {
        "train": ["train/a.jpg", "train/b.jpg"],
        "validation": ["val/c.jpg"],
        "test": ["test/d.jpg"],
    }
    images, read = found.tensors(torch.tensor([int(found.rows("train")[0])]), torch.device("cpu"))
    assert (read[0].numpy() == mask).all()
    assert (images[0].numpy() == np.asarray(Image.open(tmp_path / "images/train/a.jpg"))).all()
    assert found.classes == ["0", "1", "2"]


def test_they_are_squares_of_the_size_with_labels_of_nearest_pixels(tmp_path):
    fill(tmp_path, *"abcd")
    save(tmp_path, "wide", picture(100, 200), labels(100, 200))
    found = opened(tmp_path)
    wide = found.file.names.index("wide.jpg")
    assert found.aspect[wide] == 2
    images, read = found.tensors(torch.tensor([wide]), torch.device("cpu"))
    assert (images.shape, read.shape) == ((1, 64, 64, 3), (1, 64, 64))
    assert set(read.unique().tolist()) == {0, 1, 2}


@pytest.mark.parametrize("masks", ["masks", "annotations", "stuffthingmaps"])
def test_layout_of_coco_stuff_and_ade20k(tmp_path, masks):
    fill(tmp_path, "train2017/a", "train2017/b", "val2017/c", masks=masks)
    assert is_segmentation(tmp_path)
    found = names(opened(tmp_path))
    assert found["validation"] == ["val2017/c.jpg"]
    assert sorted(found["train"] + found["test"]) == ["train2017/a.jpg", "train2017/b.jpg"]


def test_layout_of_pascal_voc(tmp_path):
    fill(tmp_path, *"abcde", masks="SegmentationClass")
    os.rename(tmp_path / "images", tmp_path / "JPEGImages")
    save(tmp_path / "JPEGImages", "x", picture(), labels())  # a folder below, which no list names
    lists = tmp_path / "ImageSets" / "Segmentation"
    lists.mkdir(parents=True)
    for name, images in {"trainval": "abcde", "train": "abc", "val": "de"}.items():
        (lists / f"{name}.txt").write_text("\n".join(images) + "\n")
    assert is_segmentation(tmp_path)
    found = names(opened(tmp_path))
    assert found["validation"] == ["d.jpg", "e.jpg"]
    assert sorted(found["train"] + found["test"]) == ["a.jpg", "b.jpg", "c.jpg"]
    (lists / "val.txt").write_text("d\nmissing\n")
    with pytest.raises(InputError, match="missing"):
        opened(tmp_path)


def test_folders_that_are_no_splits_are_groups(tmp_path):
    fill(tmp_path, *(f"patient{i}/{j}" for i in range(8) for j in range(3)))
    found = opened(tmp_path)
    of = {split: {name.partition("/")[0] for name in some} for split, some in names(found).items()}
    assert sum(map(len, of.values())) == 8 == len(set.union(*of.values()))
    assert "group" in found.describe_splits()["test"]


def test_an_image_without_a_mask_is_named_with_the_count_of_all(tmp_path):
    fill(tmp_path, *"abcd")
    for name in "bc":
        (tmp_path / "masks" / f"{name}.png").unlink()
    with pytest.raises(InputError, match=r"of 4 images 2 lack one, .*: b\.jpg, c\.jpg"):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (labels(32, 64), r"a\.jpg and its mask .*a\.png must be of one size; got \(64, 64\) and \(64, 32\)"),
        (picture(), r"a\.png must be a mask, a PNG .* labels and not colours; got one of Pillow's mode RGB"),
        (
            np.full((64, 64), 7, np.uint8),
            r"a\.png has label 7, and classes\.txt names 3 classes, from 0 to 2",
        ),
    ],
)
def test_a_mask_that_cannot_be_used_is_named(tmp_path, mask, message):
    fill(tmp_path, *"bcd")
    save(tmp_path, "a", picture(), mask)
    (tmp_path / "classes.txt").write_text("sky\ntraffic light\nroad\n")
    with pytest.raises(InputError, match=message):
        opened(tmp_path)


def test_a_damaged_mask_is_named(tmp_path):
    fill(tmp_path, *"abc")
    (tmp_path / "masks" / "a.png").write_bytes(b"no picture")
    with pytest.raises(InputError, match=r"a\.png cannot be read"):
        opened(tmp_path)


def test_masks_of_one_class_are_refused(tmp_path):
    for name in "abc":  # as of a foreground that is white
        save(tmp_path, name, picture(), np.where(labels(classes=2) > 0, 255, 0).astype(np.uint8))
    with pytest.raises(
        InputError, match=re.escape("two classes or more; got [0] beside") + ".*must become 1"
    ):
        opened(tmp_path)


def test_another_label_can_be_ignored_and_255_always_is(tmp_path):
    mask = labels()
    mask[0] = 255
    for name in "abcd":
        save(tmp_path, name, picture(), mask)
    for ignored, there in ((255, {0, 1, 2, IGNORE}), (0, {1, 2, IGNORE})):
        assert {*np.unique(masks(opened(tmp_path, ignore_index=ignored)))} == there


def test_a_folder_of_other_images_is_none(tmp_path):
    (tmp_path / "images").mkdir()
    assert not is_segmentation(tmp_path)
    with pytest.raises(InputError, match="must be a folder with images/ and masks/"):
        opened(tmp_path)


def test_the_cache_follows_the_files_and_the_names_of_classes(tmp_path):
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
        found = open_images(SegmentationData())
        assert found.classes == NAMES
        assert {split: len(found.rows(split)) for split in ("train", "test")} == {"train": 3, "test": 2}
        assert (masks(found) == np.stack([mask_of(scene) for scene in drawn[:3]])).all()


def test_an_unknown_source_is_refused():
    with pytest.raises(InputError, match="source of segmentation"):
        open_images(SegmentationData(source="voc"))

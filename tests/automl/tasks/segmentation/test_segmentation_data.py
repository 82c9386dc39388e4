"""Test folders of images and masks: layouts, faults and contents."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from automl.base.errors import InputError
from automl.tasks.segmentation import SegmentationData
from automl.tasks.segmentation.data import IGNORE, LabelledImages, is_segmentation, open_labelled_images
from tests.helpers.segmentation_cases import save

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


def test_image_without_a_mask_is_reported(tmp_path):
    fill(tmp_path, *"abcd")
    for name in "bc":
        (tmp_path / "masks" / f"{name}.png").unlink()
    with pytest.raises(InputError, match=r"Of 4 images 2 have none or do not exist: b\.jpg, c\.jpg"):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (
            labels(32, 64),
            r"a\.jpg and its mask .*a\.png must have the same size; got \(64, 64\) and \(64, 32\)",
        ),
        (
            picture(),
            r"a\.png must be a mask: a PNG .* labels instead of colours; got one of Pillow's mode RGB",
        ),
        (
            np.full((64, 64), 7, np.uint8),
            r"a\.png has label 7, but classes\.txt names 3 classes, from 0 to 2",
        ),
    ],
)
def test_invalid_mask_is_reported(tmp_path, mask, message):
    fill(tmp_path, *"bcd")
    save(tmp_path, "a", picture(), mask)
    (tmp_path / "classes.txt").write_text("sky\ntraffic light\nroad\n")
    with pytest.raises(InputError, match=message):
        opened(tmp_path)


def test_another_label_can_be_ignored_and_255_always_is(tmp_path):
    mask = labels()
    mask[0] = 255
    for name in "abcd":
        save(tmp_path, name, picture(), mask)
    for ignored, labels_left in ((255, {0, 1, 2, IGNORE}), (0, {1, 2, IGNORE})):
        assert {*np.unique(masks(opened(tmp_path, ignore_index=ignored)))} == labels_left

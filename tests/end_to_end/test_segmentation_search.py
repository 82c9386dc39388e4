"""From a folder of images and masks to a verdict on attention, and to masks that an export predicts."""

import json
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from automl.data.digits import draw_scenes

NAMES = ["background", *"0123456789"]


def write_folder(root: Path, count: int) -> None:
    """The first scenes, with masks of one channel."""
    for folder in ("images", "masks"):
        (root / folder).mkdir(parents=True)
    for i, scene in enumerate(islice(draw_scenes(), count)):
        mask = np.zeros(scene.image.shape[:2], np.uint8)
        for category, where in zip(scene.categories, scene.masks, strict=True):
            mask[where] = category
        Image.fromarray(scene.image).save(root / "images" / f"{i}.png")
        Image.fromarray(mask).save(root / "masks" / f"{i}.png")
    (root / "classes.txt").write_text("\n".join(NAMES))


def last(output: str) -> dict:
    return json.loads(output.strip().splitlines()[-1])


@pytest.mark.slow("the command is that of a table's and of photographs' search")
def test_a_folder_of_masks_is_searched_confirmed_exported_and_predicted(automl, tmp_path):
    write_folder(tmp_path / "scenes", 60)
    assert "11 classes: background, 0, 1" in automl("data", "scenes")
    common = ("--data", "scenes", "--epochs", 1, "--size", 64, "--concurrent", 1, "--name", "scenes")
    result = last(automl("search", *common, "--trials", 2, "--confirm", "--top", 1, "--seeds", 6, "--json"))
    assert result["errors"] == 0
    assert result["best"]["metric"] == "miou"
    verdict = result["confirmation"]
    assert verdict["complete"]
    assert "points" in verdict["headline"]

    automl("export", "--best", "--out", "out")
    photo = np.random.default_rng(0).integers(0, 256, (50, 90, 3), np.uint8)
    Image.fromarray(photo).save(tmp_path / "photo.png")
    predicted = last(automl("predict", "out", "photo.png", "--out", "found", "--json"))
    assert set(predicted[0]["shares"]) <= set(NAMES)
    mask, overlay = (Image.open(tmp_path / "found" / name) for name in ("photo.png", "photo-overlay.png"))
    assert (mask.mode, mask.size, overlay.size) == ("P", (90, 50), (90, 50))
    assert np.asarray(mask).max() <= 10

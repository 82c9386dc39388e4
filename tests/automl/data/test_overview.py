"""Test `automl data`: the summary of a folder of photographs."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image

from automl.tasks.image_classification.data import overview
from automl.tasks.image_classification.data.overview import MAX_DISTANCE, _match_hashes, summarise_folder

Cli = Callable[..., tuple[int, str, str]]
COUNTS = {"train/cat": 12, "train/dog": 14, "val/cat": 4, "val/dog": 3}


@pytest.fixture
def photos(tmp_path: Path, make_folder: Callable[..., Path]) -> Path:
    """Write photographs: one is damaged, one test image is a copy, and one is a smaller version of a training
    image.
    """
    root = make_folder(tmp_path / "My photos", COUNTS)
    (root / "train/cat/0003.png").write_bytes(b"no picture")
    shutil.copy(root / "train/dog/0000.png", root / "val/dog/copy.png")
    y, x = np.mgrid[:200, :300]
    scene = np.stack([128 + 100 * np.sin(x / (17 + c) + y / (29 - c)) for c in range(3)], axis=2)
    picture = Image.fromarray(scene.astype(np.uint8))
    picture.save(root / "train/dog/scene.png")
    picture.resize((240, 160)).save(root / "val/dog/scene.jpg", quality=60)
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 8
    picture.crop((0, 0, 200, 200)).save(root / "train/dog/turned.jpg", exif=exif)
    (root / "train/cat/._0000.png").write_bytes(b"of macOS")
    return root


def test_photographs_are_summed_up(photos: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = summarise_folder(str(photos), 32)
    counts = {name: (row["train"] + row["validation"], row["test"]) for name, row in summary.counts.items()}
    assert counts == {"cat": (11, 4), "dog": (16, 5)}
    assert summary.skipped == ["train/cat/0003.png"]
    assert summary.alike == [
        ("train/dog/0000.png", "val/dog/copy.png"),
        ("train/dog/scene.png", "val/dog/scene.jpg"),
    ]
    assert max(summary.sizes) == (300, 200)
    assert len(summary.sizes) == 36
    monkeypatch.chdir(photos.parent)
    code, out, err = cli("data", photos.name, "--size", "24", "--json")
    assert code == 0, err
    lines = err.splitlines()
    assert any(line.split()[:1] == ["dog"] for line in lines)
    assert any(line.endswith(" 1 that cannot be decoded: train/cat/0003.png") for line in lines)
    assert any(
        line.endswith("1 file of the operating system or hidden: train/cat/._0000.png") for line in lines
    )
    assert "inputs      1 turned upright by their EXIF orientation: train/dog/turned.jpg" in lines
    assert any("2 images look like one of another split" in line for line in lines)
    assert "next      automl search --data 'My photos'" in lines
    assert json.loads(out)["skipped"] == ["train/cat/0003.png"]


def test_matches_equal_a_comparison_of_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "PAIRS", 1000)
    draw = np.random.default_rng(0)
    old, new = (draw.integers(0, 2**64, count, np.uint64, endpoint=False) for count in (400, 300))
    new[:100] = old[:100] ^ (np.uint64(1) << draw.integers(0, 64, 100, np.uint64))
    near = np.bitwise_count(old[None] ^ new[:, None]) <= MAX_DISTANCE
    matches = _match_hashes(old, new)
    assert ((matches >= 0) == near.any(1)).all()
    assert near[np.flatnonzero(matches >= 0), matches[matches >= 0]].all()
    assert _match_hashes(old[:0], new).max() == -1
    assert len(_match_hashes(old, new[:0])) == 0


def test_sequences(tmp_path: Path, cli: Cli) -> None:
    draw = np.random.default_rng(0)
    x = draw.normal(3.0, 2.0, (60, 2, 12)).astype(np.float32)
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=np.array(["run", "walk", "walk"] * 20))
    code, out, err = cli("data", str(tmp_path / "mine.npz"), "--json")
    assert code == 0, err
    summary = json.loads(out)
    assert sum(summary["sequences"].values()) == 60
    assert sum(summary["classes"]["walk"].values()) == 40
    assert summary["steps"] == [12, 12, 12]
    assert next(iter(summary["channels"].values())) == pytest.approx([3, 2], abs=0.3)
    assert summary["subjects"] == {}
    rows = {line.split()[0]: line.split()[1:] for line in err.splitlines()}
    assert rows["walk"] == [str(count) for count in summary["classes"]["walk"].values()]
    assert rows["steps"] == ["12"]
    assert "automl search --data" in err

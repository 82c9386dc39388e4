"""Test names with accents, composed and decomposed: every reader treats both spellings as first name."""

import csv
import unicodedata
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from automl.tasks.image_classification.data.sources import list_images
from automl.tasks.sequence_classification.data import long_csv, npz, ts
from automl.tasks.stereo.data.pairs import find_pairs

NAME = "Äpfel"
COMPOSED, DECOMPOSED = (unicodedata.normalize(form, NAME) for form in ("NFC", "NFD"))


def picture(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(abs(hash(str(path))))
    Image.fromarray(noise.integers(0, 256, (12, 16, 3), np.uint8)).save(path)


def table(path: Path, *rows: tuple[object, ...]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


def folders(root: Path, first: str, second: str) -> set[str]:
    """Write train and test folders as if copied from two machines."""
    for folder in (f"train/{first}", "train/b", f"val/{second}"):
        picture(root / folder / "0.png")
    listing = list_images("folder", str(root), 32)
    assert [len(images) for images in listing.splits.values()] == [2, 1]
    return {listing.classes[item.label] for item in listing.splits["test"]}


def labels(root: Path, first: str, second: str) -> set[str]:
    rows = []
    for i, (stored, name, label) in enumerate(
        [(first, second, first), (second, first, second), ("b", "b", "b")] * 2
    ):
        picture(root / f"{stored}{i}.png")
        rows.append((f"{name}{i}.png", label))
    table(root / "labels.csv", ("file", "label"), *rows)
    listing = list_images("folder", str(root), 32)
    assert sum(map(len, listing.splits.values())) == 6
    return {*listing.classes} - {"b"}


def series_csv(root: Path, first: str, second: str) -> set[str]:
    rows = [
        (f"{split}{label}", step, step, label, split)
        for split, label in (("train", first), ("train", "b"), ("test", second))
        for step in range(3)
    ]
    file = table(root / "a.csv", ("series", "time", "x", "label", "split"), *rows)
    return {*long_csv.read_recording([file]).splits["test"].labels}


def series_ts(root: Path, first: str, second: str) -> set[str]:
    files = []
    for split, declared, label in (("TRAIN", first, second), ("TEST", second, first)):
        files.append(root / f"A_{split}.ts")
        head = f"@univariate true\n@classLabel true {declared} b\n@data\n"
        files[-1].write_text(f"{head}1,2,3:{label}\n1,2,4:b\n", encoding="utf-8")
    return {*ts.read_recording(files).splits["test"].labels} - {"b"}


def series_npz(root: Path, first: str, second: str) -> set[str]:
    x = np.ones((2, 1, 8))
    np.savez(
        root / "a.npz", x_train=x, y_train=np.array([first, "b"]), x_test=x, y_test=np.array([second, "b"])
    )
    return {*npz.read_recording([root / "a.npz"]).splits["test"].labels} - {"b"}


def pairs(root: Path, first: str, second: str) -> set[str]:
    picture(root / first / "left.png")
    rows = [tuple(f"{second}/left.png" for _ in range(3))]
    (pair,) = find_pairs(table(root / "a.csv", ("left", "right", "disparity"), *rows))
    return {unicodedata.normalize("NFC", pair.left.parent.name)}


@pytest.mark.parametrize(
    ("first", "second"), [(COMPOSED, DECOMPOSED), (DECOMPOSED, COMPOSED)], ids=["composed", "decomposed"]
)
@pytest.mark.parametrize("read", [folders, labels, series_csv, series_ts, series_npz, pairs])
def test_both_spellings_are_one_name(
    read: Callable[[Path, str, str], set[str]], first: str, second: str, tmp_path: Path
) -> None:
    assert read(tmp_path, first, second) == {COMPOSED}

"""Test files and folders whose names are not UTF-8, in every kind of data."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from automl.data.manifest import Manifest
from automl.tasks.code_retrieval.data.cache import open_cached_corpus
from automl.tasks.image_classification.data.sources import list_images
from automl.tasks.stereo.data.files import write_pfm
from automl.tasks.stereo.data.pairs import find_pairs


def odd(folder: Path, name: bytes) -> Path:
    """Return a path in `folder` whose name on the disk is `name`."""
    return folder / os.fsdecode(name)


def test_images(tmp_path: Path, make_folder: Callable[..., Path]) -> None:
    root = make_folder(tmp_path / "d", {"a": 10, "b": 10, "c": 10})
    (root / "a").rename(odd(root, b"caf\xe9"))
    (root / "b").rename(odd(root, b"caf\xe8"))
    (root / "c" / "0000.png").rename(odd(root / "c", b"\xff.png"))
    listing = list_images("folder", root, 8)
    assert listing.classes == ("c", "caf\\xe8", "caf\\xe9"), "two names stay two"
    names = {item.name for split in listing.splits.values() for item in split}
    assert {"c/\\xff.png", "caf\\xe9/0000.png"} <= names
    Manifest.from_splits({"train": [(item.name, "c", item.content) for item in listing.splits["train"]]})


def test_source_code(tmp_path: Path) -> None:
    for number in range(40):
        body = "".join(" + a" if number >> bit & 1 else " * a" for bit in range(6))
        text = f'def f(a):\n    """Compute word{number}."""\n    return a{body}\n'
        odd(tmp_path, b"m%d\xe9.py" % number).write_text(text)
    assert "m7\\xe9.py" in {function.file for function in open_cached_corpus(tmp_path).functions}


def test_stereo_pairs(tmp_path: Path) -> None:
    scene = odd(tmp_path, b"sc\xe8ne")
    scene.mkdir()
    for side in ("im0.png", "im1.png"):
        Image.fromarray(np.zeros((6, 10, 3), np.uint8)).save(scene / side)
    write_pfm(scene / "disp0.pfm", np.ones((6, 10), np.float32))
    (pair,) = find_pairs(tmp_path)
    assert (pair.name, pair.left.is_file()) == ("sc\\xe8ne", True)
    shutil.rmtree(scene)  # pytest lists what it deletes

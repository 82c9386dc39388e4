import pickle
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from automl.base.errors import InputError
from automl.data.pictures import decode
from automl.tasks.image_classification.data import Images, open_image_records, open_split


@pytest.fixture
def root(tmp_path: Path, make_folder: Callable[..., Path]) -> Path:
    return make_folder(tmp_path / "d", {"train/a": 10, "train/b": 20, "test/a": 5, "test/b": 5})


def names(images: Images) -> set[str]:
    return set(images.names())


def test_validation_and_subsets_are_held_out_of_train(root: Path) -> None:
    train, validation, test = (
        open_split("folder", split, path=root, size=8) for split in ("train", "validation", "test")
    )
    assert len(test) == 10
    for images in (train, validation):
        assert torch.bincount(images.labels, minlength=2).all(), "each class on either side"
    assert torch.bincount(torch.cat([train.labels, validation.labels])).tolist() == [10, 20]
    assert not names(train) & names(validation)
    assert names(open_split("folder", "validation", path=root, size=8)) == names(validation)
    assert train.side == 16
    assert (train.labels.dtype, train.aspect.dtype) == (torch.int64, torch.float32)
    opened = {
        fraction: [
            open_split("folder", split, path=root, size=8, subset=fraction)
            for split in ("train", "validation", "test")
        ]
        for fraction in (0.25, 0.5, 1.0)
    }
    for less, more in pairwise(opened.values()):
        for small, large in zip(less, more, strict=True):
            assert names(small) <= names(large)
            assert set(small.labels.tolist()) == {0, 1}
    assert len(opened[0.25][0]) < len(opened[1.0][0])
    assert len(opened[0.25][2]) == 10
    tiny = open_split("folder", "train", path=root, size=8, subset=0.001)
    assert torch.bincount(tiny.labels).tolist() == [1, 1]


def test_training_does_not_decode_the_test_split(
    root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are hashed but not decoded."""
    for image in (root / "test").rglob("*.png"):
        image.write_bytes(b"decoding this raises")
    decoded: list[str] = []
    monkeypatch.setattr(
        "automl.tasks.image_classification.data.dataset.decode",
        lambda image, side, changes: decoded.append(str(image)) or decode(image, side, changes),
    )
    open_image_records("folder", path=root, size=8).manifest()
    assert decoded == []
    for split in ("train", "validation"):
        open_split("folder", split, path=root, size=8).gather(torch.arange(2))
    assert len(decoded) == 30
    assert all(name.startswith(str(root / "train")) for name in decoded)
    assert len(list(cache.glob("*.arrow"))) == 2
    with pytest.raises(InputError, match="folder test images"):
        open_split("folder", "test", path=root, size=8)


def test_gathered_rows_are_views_and_not_pickled(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("automl.data.arrow.BATCH_BYTES", 1500)
    images = open_split("folder", "train", path=root, size=8, side=12)
    order = torch.tensor([len(images) - 1, 0, 9, 9, -1])
    rows = images.gather(order)
    assert rows.dtype == torch.uint8
    for index, row in zip(order.tolist(), rows, strict=True):
        assert (row.numpy() == decode(root / images.names()[index], 12)[0]).all()
    rows += 1  # a copy: the cache is neither writable nor changed
    assert not (images.gather(order) == rows).any()
    assert images.gather(torch.empty(0, dtype=torch.int64)).shape == (0, 12, 12, 3)
    with pytest.raises(IndexError):
        images.gather(torch.tensor([len(images)]))
    images = open_split("folder", "train", path=root, size=64)
    pickled = pickle.dumps(images)
    assert len(pickled) < 5_000
    again: Images = pickle.loads(pickled)
    assert torch.equal(again.gather(torch.arange(20)), images.gather(torch.arange(20)))

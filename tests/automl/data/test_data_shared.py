"""Decoded splits that one process puts into a storage and others fetch, on a disk and on an object store."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attention import InputError
from automl.data import shared
from automl.data.images import image_cache, open_split, shared_name
from automl.data.sequences import open_sequences
from automl.data.sequences import shared_name as name_of_sequences
from automl.data.splits import SPLITS
from automl.storage.storage import Storage


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    shared.use(None)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The splits that were decoded."""
    done: list[str] = []
    rows = image_cache._rows

    def count(items: Any, side: int, what: str, skipped: dict[str, str]) -> Any:
        done.append(what)
        return rows(items, side, what, skipped)

    monkeypatch.setattr(image_cache, "_rows", count)
    return done


def node(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Be another machine."""
    monkeypatch.setenv("AUTOML_CACHE", str(tmp_path / name))
    return tmp_path / name


def share(
    storage: Storage, splits: tuple[str, ...], folder: Path, source: str, path: Path | None
) -> dict[str, Any]:
    files = {split: open_split(source, split, path=path, size=32).file.path for split in splits}
    return shared.publish(storage, shared_name(source, path, 32), files, folder)


def pictures(folder: Path) -> Path:
    from PIL import Image

    for split, count in (("train", 8), ("test", 2)):
        for label in "ab":
            place = folder / split / label
            place.mkdir(parents=True)
            for i in range(count):
                Image.new("RGB", (32, 32), (i * 20, ord(label), 9)).save(place / f"{i}.png")
    return folder


def test_one_decodes_and_the_others_fetch(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decoded: list[str]
) -> None:
    path = pictures(tmp_path / "pictures")
    node("head", tmp_path, monkeypatch)
    told = share(storage, ("train", "validation", "test"), tmp_path, "folder", path)
    assert decoded == ["folder train", "folder validation", "folder test"]
    here = {
        split: open_split("folder", split, path=path, size=32) for split in ("train", "validation", "test")
    }
    path.rename(tmp_path / "moved")  # which the other nodes never had
    shared.use(json.loads(json.dumps(told)))
    for name in ("first", "second"):
        place = node(name, tmp_path, monkeypatch)
        for split, images in here.items():
            there = open_split("folder", split, path=path, size=32)
            assert there.digest == images.digest
            assert torch.equal(there.labels, images.labels)
            everything = torch.arange(len(images))
            assert torch.equal(there.gather(everything), images.gather(everything))
        assert len(list(place.glob("*.arrow"))) == 3
    assert len(decoded) == 3, "once in all"
    # What a node has it does not fetch again, and a process that resumes elsewhere finds it.
    (storage / shared.SHARED_FOLDER).clear()
    shared.use(None)
    with pytest.raises(InputError, match="there is no file or folder"):
        open_split("folder", "train", path=path, size=32)
    shared.use_saved(tmp_path, storage)
    assert len(open_split("folder", "train", path=path, size=32)) == len(here["train"])


def test_what_was_not_shared_is_decoded_on_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decoded: list[str]
) -> None:
    path = pictures(tmp_path / "pictures")
    storage = Storage(str(tmp_path / "searches"))
    node("head", tmp_path, monkeypatch)
    shared.use(share(storage, ("train",), tmp_path, "folder", path))
    node("other", tmp_path, monkeypatch)
    for size, split in ((32, "train"), (24, "train"), (24, "validation"), (32, "test"), (32, "test")):
        open_split("folder", split, path=path, size=size)
    assert decoded == ["folder train", "folder train", "folder validation", "folder test"]


def test_a_second_search_sends_nothing_twice(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    send = Storage.send

    def count(self: Storage, path: Path, name: str) -> None:
        sent.append(name)
        send(self, path, name)

    monkeypatch.setattr(Storage, "send", count)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        share(storage, ("train", "validation"), tmp_path / name, "digits", None)
    assert len(sent) == 2
    assert (tmp_path / "one" / shared.SHARED_FILE).read_text() == (
        tmp_path / "two" / shared.SHARED_FILE
    ).read_text()


@pytest.mark.parametrize("damage", ["cut", "changed", "gone"])
def test_what_comes_damaged_is_told(damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage(str(tmp_path / "searches"))
    node("head", tmp_path, monkeypatch)
    shared.use(share(storage, ("train",), tmp_path, "digits", None))
    (file,) = (tmp_path / "searches" / shared.SHARED_FOLDER).iterdir()
    content = file.read_bytes()
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(content[:-9] if damage == "cut" else content[:5000] + b"?" + content[5001:])
    place = node("other", tmp_path, monkeypatch)
    with pytest.raises(
        InputError, match="cannot be fetched" if damage == "gone" else "damaged.*delete the file"
    ):
        open_split("digits", "train", size=32)
    assert not list(place.glob("*.arrow")), "nothing that looks finished"


def test_sequences_are_fetched_where_their_files_are_not(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "waves.npz"
    x = np.random.default_rng(0).normal(size=(20, 3, 8)).astype(np.float32)
    np.savez(path, x_train=x, y_train=np.arange(20) % 2, x_test=x[:4], y_test=np.arange(4) % 2)
    node("head", tmp_path, monkeypatch)
    name = name_of_sequences("series", path)
    assert not shared.is_shared(name, SPLITS)
    file = open_sequences("series", "test", path=path).file.path
    told = shared.publish(storage, name, dict.fromkeys(SPLITS, file), tmp_path)
    path.unlink()
    node("worker", tmp_path, monkeypatch)
    shared.use(json.loads(json.dumps(told)))
    assert shared.is_shared(name, SPLITS)
    test = open_sequences("series", "test", path=path)
    assert (test.values(3) == x[3]).all()

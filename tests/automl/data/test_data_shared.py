"""Test decoded splits that one process writes to a storage and others fetch, on a disk and on an object
store.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from automl.base.errors import InputError
from automl.data import shared
from automl.storage.storage import Storage
from automl.tasks.image_classification.data import dataset as image_cache
from automl.tasks.image_classification.data import open_split, shared_name


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    shared.use(None)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the splits that were decoded."""
    done: list[str] = []
    write = image_cache._write_images

    def count(schema: Any, about: Any, what: str, *further: Any) -> Any:
        done.append(what)
        return write(schema, about, what, *further)

    monkeypatch.setattr(image_cache, "_write_images", count)
    return done


def node(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use the cache of another node."""
    monkeypatch.setenv("AUTOML_CACHE", str(tmp_path / name))
    return tmp_path / name


def publish(
    storage: Storage, splits: tuple[str, ...], folder: Path, source: str, path: Path | None
) -> dict[str, Any]:
    files = {split: open_split(source, split, path=path, size=32).file.path for split in splits}
    return shared.publish(storage, shared_name(source, path, 32), files, folder)


def pictures(folder: Path) -> Path:
    from PIL import Image

    for split, count in (("train", 8), ("test", 2)):
        for label in "ab":
            images = folder / split / label
            images.mkdir(parents=True)
            for i in range(count):
                Image.new("RGB", (32, 32), (i * 20, ord(label), 9)).save(images / f"{i}.png")
    return folder


def test_one_node_decodes_and_others_fetch(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decoded: list[str]
) -> None:
    path = pictures(tmp_path / "pictures")
    node("head", tmp_path, monkeypatch)
    files_in_storage = publish(storage, ("train", "validation", "test"), tmp_path, "folder", path)
    assert decoded == ["folder train", "folder validation", "folder test"]
    opened = {
        split: open_split("folder", split, path=path, size=32) for split in ("train", "validation", "test")
    }
    path.rename(tmp_path / "moved")  # The other nodes do not have the folder.
    shared.use(json.loads(json.dumps(files_in_storage)))
    for name in ("first", "second"):
        folder = node(name, tmp_path, monkeypatch)
        for split, images in opened.items():
            fetched = open_split("folder", split, path=path, size=32)
            assert fetched.file.digest == images.file.digest
            assert torch.equal(fetched.labels, images.labels)
            everything = torch.arange(len(images))
            assert torch.equal(fetched.gather(everything), images.gather(everything))
        assert len(list(folder.glob("*.arrow"))) == 3
    assert len(decoded) == 3, "once in all"
    # A node does not fetch its files again, and a process that resumes the search uses them.
    (storage / shared.SHARED_FOLDER).clear()
    shared.use(None)
    with pytest.raises(InputError, match="there is no file or folder"):
        open_split("folder", "train", path=path, size=32)
    shared.use_saved(tmp_path, storage)
    assert len(open_split("folder", "train", path=path, size=32)) == len(opened["train"])


def test_splits_that_are_not_shared_are_decoded_on_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decoded: list[str]
) -> None:
    path = pictures(tmp_path / "pictures")
    storage = Storage(str(tmp_path / "searches"))
    node("head", tmp_path, monkeypatch)
    shared.use(publish(storage, ("train",), tmp_path, "folder", path))
    node("other", tmp_path, monkeypatch)
    for size, split in ((32, "train"), (24, "train"), (24, "validation"), (32, "test"), (32, "test")):
        open_split("folder", split, path=path, size=size)
    assert decoded == ["folder train", "folder train", "folder validation", "folder test"]


def test_second_search_sends_no_file_again(
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
        publish(storage, ("train", "validation"), tmp_path / name, "digits", None)
    assert len(sent) == 2
    assert (tmp_path / "one" / shared.SHARED_FILE).read_text() == (
        tmp_path / "two" / shared.SHARED_FILE
    ).read_text()


@pytest.mark.parametrize("damage", ["cut", "changed", "gone"])
def test_damaged_files_are_reported(damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage(str(tmp_path / "searches"))
    node("head", tmp_path, monkeypatch)
    shared.use(publish(storage, ("train",), tmp_path, "digits", None))
    (file,) = (tmp_path / "searches" / shared.SHARED_FOLDER).iterdir()
    content = file.read_bytes()
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(content[:-9] if damage == "cut" else content[:5000] + b"?" + content[5001:])
    folder = node("other", tmp_path, monkeypatch)
    message = "cannot be fetched" if damage == "gone" else "damaged.*Delete the file"
    with pytest.raises(InputError, match=message):
        open_split("digits", "train", size=32)
    assert not list(folder.glob("*.arrow")), "no file that looks complete"

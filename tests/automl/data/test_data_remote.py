"""Test data at an address: a folder or an archive of an object store."""

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from automl.base.errors import InputError
from automl.base.text import absolute_data, data_name
from automl.config.nouns import Question
from automl.data import remote
from automl.data.remote import local_copy
from automl.storage.storage import Storage
from automl.task import task_of_data
from automl.tasks.image_classification.data import open_split


def picture(red: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (32, 32), (red, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def address(object_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the address of a folder of 20 pictures of two classes."""
    for name, value in object_store.environment.items():
        monkeypatch.setenv(name, value)
    remote._copy.cache_clear()
    address = object_store.address(f"searches/{tmp_path.name}/photos")
    for i in range(20):
        Storage(address).write(f"{'ab'[i % 2]}/{i}.png", picture(12 * i))
    return address


def test_folder_is_copied_once(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = local_copy(address)
    assert folder.name == "photos"
    assert len(list(folder.rglob("*.png"))) == 20
    assert len(open_split("folder", "train", path=address, size=32)) == 12
    assert task_of_data(address) is None  # images of classes
    remote._copy.cache_clear()  # another process
    fetch = Storage.fetch
    monkeypatch.setattr(Storage, "fetch", None)
    assert local_copy(address) == folder
    monkeypatch.setattr(Storage, "fetch", fetch)
    Storage(address).write("a/0.png", picture(255))
    remote._copy.cache_clear()
    assert local_copy(address) != folder, "the data have changed"


def test_interrupted_copy_continues(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch, fetched = Storage.fetch, list[str]()

    def stop(self: Storage, name: str, path: Path) -> None:
        if len(fetched) == 5:
            raise InputError("stopped")
        fetched.append(name)
        fetch(self, name, path)

    monkeypatch.setattr(remote, "AT_ONCE", 1)
    monkeypatch.setattr(Storage, "fetch", stop)
    with pytest.raises(InputError, match="stopped"):
        local_copy(address)
    monkeypatch.setattr(
        Storage, "fetch", lambda self, name, path: fetched.append(name) or fetch(self, name, path)
    )
    assert len(list(local_copy(address).rglob("*.png"))) == 20
    assert len(fetched) == len({*fetched}) == 20


def test_archive(address: str) -> None:
    buffer, above = io.BytesIO(), Storage(address).parent
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for i in range(20):
            info = tarfile.TarInfo(f"photos/{'ab'[i % 2]}/{i}.png")
            info.size = len(picture(12 * i))
            archive.addfile(info, io.BytesIO(picture(12 * i)))
    above.write("photos.tgz", buffer.getvalue())
    packed = str(above).replace("?", "/photos.tgz?", 1)
    assert local_copy(packed).name == "photos.tgz"
    assert len(open_split("folder", "train", path=packed, size=32)) == 12
    assert data_name(packed) == "photos"


def test_names(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute_data(address) == address
    assert absolute_data("photos") == str(tmp_path / "photos")
    assert data_name(address) == "photos"
    question = Question(space="folder", data=address)
    assert (question.absolute().data, question.title) == (address, "photos")
    assert local_copy(f"file://{tmp_path}") == tmp_path
    assert local_copy(tmp_path) == tmp_path


def test_nothing_at_the_address(address: str) -> None:
    with pytest.raises(InputError, match="there are no data at s3://"):
        local_copy(address.replace("photos", "phots"))
    with pytest.raises(InputError, match="must not contain credentials"):
        local_copy("s3://key:secret@bucket/photos")

"""Test splits that the nodes of a cluster decode together, in shards that each node joins once."""

import pickle
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from automl.base.errors import InputError
from automl.data import shared
from automl.storage.storage import Storage
from automl.tasks.detection import DetectionData
from automl.tasks.detection import data as detection
from automl.tasks.image_classification.data import Images, dataset, open_split, shared_name
from tests.helpers.detection_cases import few_scenes, write_scenes

SIDE, PER_SHARD = 24, 10
SPLITS = ("train", "validation")


@pytest.fixture
def computed() -> list[str]:
    """Return the names of the shards that tasks wrote."""
    return []


@pytest.fixture(autouse=True)
def cluster(monkeypatch: pytest.MonkeyPatch, computed: list[str]) -> Iterator[None]:
    """Run tasks of a cluster in this process, and cut splits of more than ten images into shards."""

    @contextmanager
    def open_nodes() -> Iterator[Any]:
        def map_on_nodes(compute: Callable[..., Any], arguments: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
            for each in arguments:
                computed.append(each[1])
                yield pickle.loads(pickle.dumps(compute(*pickle.loads(pickle.dumps(each)))))

        yield map_on_nodes

    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setattr(shared, "resolve", lambda reference: open_nodes)
    monkeypatch.setattr(shared, "SHARD_BYTES", PER_SHARD * SIDE * SIDE * 3)
    monkeypatch.setattr(shared, "LEAST", 1)
    shared.use(None)  # an earlier test of this process may have prepared a search
    yield
    shared.use(None)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Return a folder with 90 photographs of two classes."""
    rng = np.random.default_rng(0)
    for i in range(90):
        file = tmp_path / "photos" / "ab"[i % 2] / f"{i}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (20 + i, 40, 3), np.uint8)).save(file)
    return tmp_path / "photos"


def enter(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use the cache of another machine."""
    monkeypatch.setenv("AUTOML_CACHE", str(tmp_path / name))
    return tmp_path / name


def opened(photos: Path, split: str = "train") -> Images:
    return open_split("folder", split, path=photos, size=SIDE, side=SIDE)


def pixels(images: Images) -> torch.Tensor:
    return images.gather(torch.arange(len(images)))


def decode(storage: Storage, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Decode as the driver of a search does. Return what its trials get."""
    enter("head", tmp_path, monkeypatch)
    shared.use_saved(None, storage)
    files = {split: opened(photos, split).file.path for split in SPLITS}
    return shared.publish(storage, shared_name("folder", photos, SIDE, SIDE), files, tmp_path)


@pytest.mark.parametrize("kept", ["decoded", "files"])
def test_nodes_decode_and_each_joins_the_shards_once(
    kept: str,
    storage: Storage,
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    computed: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    if kept == "files":
        monkeypatch.setattr(dataset, "free_bytes", lambda _: 0)
    enter("alone", tmp_path, monkeypatch)
    expected = {split: opened(photos, split) for split in SPLITS}  # of a machine without a storage
    assert computed == []
    sent = decode(storage, photos, tmp_path, monkeypatch)
    assert len(computed) == sum(-(-len(images) // PER_SHARD) for images in expected.values())
    assert len({*computed}) == len(computed)
    head = opened(photos)
    assert torch.equal(head.labels, expected["train"].labels)
    assert head.names() == expected["train"].names()
    assert "image" not in head.file.table.column_names
    assert head.file.encoded == (kept == "files")
    on_head = {path.name for path in (tmp_path / "head").glob("*.arrow")}
    assert all(name.endswith(".index.arrow") for name in on_head), "the driver has no pixels"
    photos.rename(tmp_path / "moved")  # The nodes do not see the folder.
    for name in ("first", "second"):
        folder = enter(name, tmp_path, monkeypatch)
        shared.use(sent)
        for split, images in expected.items():
            joined = opened(photos, split)
            assert joined.file.path.name == images.file.path.name, "the file of a single machine"
            assert torch.equal(pixels(joined), pixels(images))
            assert joined.file.digest == images.file.digest
        assert not list(folder.glob("*.tmp"))
        assert len(re.findall(r"fetched \S+B into", capsys.readouterr().err)) == 2
        opened(photos)
        assert "fetched" not in capsys.readouterr().err
    assert len({*computed}) == len(computed), "no shard twice"


def test_the_driver_gets_pixels_when_it_needs_them(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode(Storage(str(tmp_path / "kept")), photos, tmp_path, monkeypatch)
    of_head = pixels(opened(photos))
    enter("alone", tmp_path, monkeypatch)
    shared.use(None)
    assert torch.equal(of_head, pixels(opened(photos)))


@pytest.mark.parametrize("times", [2, 3])
def test_damaged_shard_is_fetched_again(
    times: int, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, computed: list[str]
) -> None:
    sent = decode(Storage(str(tmp_path / "kept")), photos, tmp_path, monkeypatch)
    damaged, fetch = [computed[1]] * times, Storage.fetch

    def damage(self: Storage, name: str, path: Path) -> None:
        fetch(self, name, path)
        if name in damaged:
            damaged.remove(name)
            path.write_bytes(path.read_bytes()[:-1] + b"?")

    monkeypatch.setattr(Storage, "fetch", damage)
    folder = enter("node", tmp_path, monkeypatch)
    shared.use(sent)
    if times == shared.TRIES:
        with pytest.raises(InputError, match=f"{computed[1]} are damaged .*Delete the file"):
            opened(photos)
        assert all(path.name.endswith(".index.arrow") for path in folder.glob("*.arrow"))
        assert not list(folder.glob("*.tmp"))
    else:
        assert len(pixels(opened(photos))) == len(opened(photos))


def test_missing_shard_is_decoded_again(
    storage: Storage,
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    computed: list[str],
) -> None:
    sent = decode(storage, photos, tmp_path, monkeypatch)
    (storage / shared.SHARED_FOLDER).remove(computed[1])
    enter("node", tmp_path, monkeypatch)
    shared.use(sent)
    with pytest.raises(InputError, match=f"{computed[1]} cannot be fetched"):
        opened(photos)
    written: list[str] = []
    send = Storage.send
    monkeypatch.setattr(
        Storage, "send", lambda self, path, name: written.append(name) or send(self, path, name)
    )
    enter("head", tmp_path, monkeypatch)
    shared.use_saved(tmp_path, storage)  # the search is resumed
    opened(photos)
    assert written == [computed[1]], "the others are kept"
    enter("node", tmp_path, monkeypatch)
    shared.use(sent)
    assert len(pixels(opened(photos)))


def test_damaged_images_of_all_shards_are_counted(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = sorted(photos.rglob("*.jpg"))
    for number, file in enumerate(files[::12]):
        file.write_bytes(f"no picture {number}".encode())
    decode(Storage(str(tmp_path / "kept")), photos, tmp_path, monkeypatch)
    head, errors = opened(photos), capsys.readouterr().err
    assert len(head.file.skipped) > 1
    assert "Unidentified" in errors
    assert "BytesIO" not in errors
    for number, file in enumerate(files[1::3]):
        file.write_bytes(f"none {number}".encode())
    with pytest.raises(InputError, match=r"at most 5 of the folder train images may be damaged"):
        opened(photos)


@pytest.mark.parametrize("why", ["small", "one machine"])
def test_the_driver_decodes_what_is_small_or_alone(
    why: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, computed: list[str]
) -> None:
    if why == "small":
        monkeypatch.setattr(shared, "LEAST", 6)
    else:
        monkeypatch.delenv("RAY_ADDRESS")
    decode(Storage(str(tmp_path / "kept")), photos, tmp_path, monkeypatch)
    assert computed == []
    assert "image" in opened(photos).file.table.column_names


def test_nodes_decode_photos_with_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, computed: list[str]
) -> None:
    data, storage = DetectionData(source="coco", path=str(tmp_path), size=32), Storage(str(tmp_path / "kept"))
    with few_scenes(12, 2):
        write_scenes(tmp_path, {"train": 12, "validation": 2, "test": 2})
    enter("alone", tmp_path, monkeypatch)
    expected = detection.open_split(data, "train")
    enter("head", tmp_path, monkeypatch)
    shared.use_saved(None, storage)
    head = detection.open_split(data, "train")
    assert len(computed) > 1
    assert "image" not in head.file.table.column_names
    sent = shared.publish(storage, detection.shared_name(data), {"train": head.file.path}, tmp_path)
    enter("node", tmp_path, monkeypatch)
    shared.use(sent)
    joined = detection.open_split(data, "train")
    assert joined.file.path.name == expected.file.path.name, "the file of a single machine"
    for i in range(len(expected)):
        assert np.array_equal(joined.image(i), expected.image(i))
        assert joined.objects(i).masks == expected.objects(i).masks


def test_size_and_time_of_shards(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage(str(tmp_path / "kept"))
    decode(storage, photos, tmp_path, monkeypatch)
    head = opened(photos)
    size, seconds = shared.measure_fetch([head.file.path])
    assert size == sum(shard.size for shard in shared.list_shards(head.file))
    assert seconds is not None
    assert seconds > 0
    assert shared.measure_fetch([]) == (0, None)

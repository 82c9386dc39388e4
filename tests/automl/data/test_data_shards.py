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
from automl.data.records import Records
from automl.storage.storage import Storage
from automl.tasks.detection import DetectionData
from automl.tasks.detection import data as detection
from automl.tasks.image_classification.data import Images, dataset, open_split, shared_name
from automl.tasks.segmentation import SegmentationData
from automl.tasks.segmentation import data as segmentation
from automl.tasks.stereo import StereoData
from automl.tasks.stereo import data as stereo
from tests.helpers.detection_cases import few_scenes, write_scenes
from tests.helpers.segmentation_cases import write_folder

SIDE, PER_SHARD = 24, 10
SPLITS = ("train", "validation")
Enter = Callable[[str], Path]
Decode = Callable[..., dict[str, Any]]


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


@pytest.fixture
def enter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Enter:
    """Return a function that uses the cache of another machine."""

    def use(name: str) -> Path:
        monkeypatch.setenv("AUTOML_CACHE", str(tmp_path / name))
        return tmp_path / name

    return use


def opened(photos: Path, split: str = "train") -> Images:
    return open_split("folder", split, path=photos, size=SIDE, side=SIDE)


def pixels(images: Images) -> torch.Tensor:
    return images.gather(torch.arange(len(images)))


@pytest.fixture
def decode(photos: Path, tmp_path: Path, enter: Enter) -> Decode:
    """Return a function that decodes as the driver of a search does. It returns what its trials get."""

    def fill(storage: Storage | None = None) -> dict[str, Any]:
        storage = storage or Storage(str(tmp_path / "kept"))
        enter("head")
        shared.use_saved(None, storage)
        files = {split: opened(photos, split).file.path for split in SPLITS}
        return shared.publish(storage, shared_name("folder", photos, SIDE, SIDE), files, tmp_path)

    return fill


@pytest.mark.parametrize("kept", ["decoded", "files"])
def test_nodes_decode_and_each_joins_the_shards_once(
    kept: str,
    storage: Storage,
    photos: Path,
    enter: Enter,
    decode: Decode,
    monkeypatch: pytest.MonkeyPatch,
    computed: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    if kept == "files":
        monkeypatch.setattr(dataset, "free_bytes", lambda _: 0)
    enter("alone")
    expected = {split: opened(photos, split) for split in SPLITS}  # of a machine without a storage
    assert computed == []
    sent = decode(storage)
    assert len(computed) == sum(-(-len(images) // PER_SHARD) for images in expected.values())
    assert len({*computed}) == len(computed)
    head = opened(photos)
    assert torch.equal(head.labels, expected["train"].labels)
    assert head.names() == expected["train"].names()
    assert "image" not in head.file.table.column_names
    assert head.file.encoded == (kept == "files")
    on_head = {path.name for path in photos.with_name("head").glob("*.arrow")}
    assert all(name.endswith(".index.arrow") for name in on_head), "the driver has no pixels"
    photos.rename(photos.with_name("moved"))  # The nodes do not see the folder.
    for name in ("first", "second"):
        folder = enter(name)
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


def test_the_driver_gets_pixels_when_it_needs_them(photos: Path, enter: Enter, decode: Decode) -> None:
    decode()
    of_head = pixels(opened(photos))
    enter("alone")
    shared.use(None)
    assert torch.equal(of_head, pixels(opened(photos)))


@pytest.mark.parametrize("times", [2, 3])
def test_damaged_shard_is_fetched_again(
    times: int,
    photos: Path,
    enter: Enter,
    decode: Decode,
    monkeypatch: pytest.MonkeyPatch,
    computed: list[str],
) -> None:
    sent = decode()
    damaged, fetch = [computed[1]] * times, Storage.fetch

    def damage(self: Storage, name: str, path: Path) -> None:
        fetch(self, name, path)
        if name in damaged:
            damaged.remove(name)
            path.write_bytes(path.read_bytes()[:-1] + b"?")

    monkeypatch.setattr(Storage, "fetch", damage)
    folder = enter("node")
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
    enter: Enter,
    decode: Decode,
    monkeypatch: pytest.MonkeyPatch,
    computed: list[str],
) -> None:
    sent = decode(storage)
    (storage / shared.SHARED_FOLDER).remove(computed[1])
    enter("node")
    shared.use(sent)
    with pytest.raises(InputError, match=f"{computed[1]} cannot be fetched"):
        opened(photos)
    written: list[str] = []
    send = Storage.send
    monkeypatch.setattr(
        Storage, "send", lambda self, path, name: written.append(name) or send(self, path, name)
    )
    enter("head")
    shared.use_saved(photos.parent, storage)  # the search is resumed
    opened(photos)
    assert written == [computed[1]], "the others are kept"
    enter("node")
    shared.use(sent)
    assert len(pixels(opened(photos)))


def test_damaged_images_of_all_shards_are_counted(
    photos: Path, decode: Decode, capsys: pytest.CaptureFixture[str]
) -> None:
    files = sorted(photos.rglob("*.jpg"))
    for number, file in enumerate(files[::12]):
        file.write_bytes(f"no picture {number}".encode())
    decode()
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
    why: str, photos: Path, decode: Decode, monkeypatch: pytest.MonkeyPatch, computed: list[str]
) -> None:
    if why == "small":
        monkeypatch.setattr(shared, "LEAST", 6)
    else:
        monkeypatch.delenv("RAY_ADDRESS")
    decode()
    assert computed == []
    assert "image" in opened(photos).file.table.column_names


Opened = dict[str, tuple[Any, list[str]]]  # the file and the names of each split
Case = tuple[str | None, Callable[[], Opened]]


def objects(root: Path) -> Case:
    with few_scenes(30, 2):
        write_scenes(root, {"train": 30})
    data = DetectionData(source="coco", path=str(root), size=32, subset=0.5)
    return detection.shared_name(data), lambda: {
        split: ((images := detection.open_split(data, split)).file, images.names()) for split in SPLITS
    }


def masks(root: Path) -> Case:
    data = SegmentationData(path=str(write_folder(root, 12)), size=32, subset=0.5)
    return segmentation.shared_name(data), lambda: names(segmentation.open_labelled_images(data))


def pairs(root: Path) -> Case:
    rng, rows = np.random.default_rng(0), ["left,right,disparity"]
    for i in range(12):
        for name in ("left", "right"):  # of 16 bits, so that both may be read twice
            Image.fromarray(rng.integers(0, 9 << i, (12, 16), np.uint16)).save(root / f"{name}{i}.png")
        Image.fromarray(rng.uniform(0, 9, (12, 16)).astype(np.float32)).save(root / f"{i}.pfm")
        rows.append(f"left{i}.png,right{i}.png,{i}.pfm")
    (root / "pairs.csv").write_text("\n".join(rows))
    data = StereoData(source="pairs", path=str(root / "pairs.csv"), subset=0.5)
    return stereo.shared_name(data), lambda: names(stereo.open_pairs(data))


def names(records: Records[Any]) -> Opened:
    return {s: (records.file, [records.file.names[row] for row in records.rows(s)]) for s in SPLITS}


@pytest.mark.parametrize(
    ("make", "lacking"),
    [(objects, {"image"}), (masks, {"image", "mask"}), (pairs, {"left", "right", "disparity"})],
)
def test_nodes_decode_other_pictures(
    make: Callable[[Path], Case], lacking: set[str], tmp_path: Path, enter: Enter, computed: list[str]
) -> None:
    (root := tmp_path / "data").mkdir()
    name, open_splits = make(root)
    enter("alone")
    expected = open_splits()
    assert computed == []
    enter("head")
    shared.use_saved(None, storage := Storage(str(tmp_path / "kept")))
    head, (file, _) = open_splits(), expected["train"]
    assert len(computed) > 1
    assert {*file.table.column_names} - {*head["train"][0].table.column_names} == lacking
    assert head["train"][0].whole.equals(file.table)
    sent = shared.publish(storage, str(name), {s: file.path for s, (file, _) in head.items()}, tmp_path)
    root.rename(tmp_path / "moved")  # The nodes do not see the folder.
    enter("node")
    shared.use(sent)
    for split, (joined, used) in open_splits().items():
        file, kept = expected[split]
        assert joined.path.name == file.path.name, "the file of a single machine"
        assert joined.table.equals(file.table)
        assert used == kept


def test_messages_of_nodes_name_the_file_of_the_driver(
    tmp_path: Path, enter: Enter, computed: list[str]
) -> None:
    enter("head")
    _, open_splits = masks(tmp_path)
    (tmp_path / "masks" / "0011.png").write_bytes(b"no picture")
    shared.use_saved(None, Storage(str(tmp_path / "kept")))
    message = rf"^{tmp_path}/masks/0011.png cannot be read \(cannot .* {tmp_path}/m"
    with pytest.raises(InputError, match=message):
        open_splits()
    assert computed


def test_size_and_time_of_shards(photos: Path, decode: Decode) -> None:
    decode()
    head = opened(photos)
    size, seconds = shared.measure_fetch([head.file.path])
    assert size == sum(shard.size for shard in shared.list_shards(head.file))
    assert seconds is not None
    assert seconds > 0
    assert shared.measure_fetch([]) == (0, None)

"""The cache of decoded images, and the splits that are opened from it."""

import multiprocessing
import resource
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock

from automl.base.errors import InputError
from automl.data import arrow
from automl.data import files as digests
from automl.storage.cache_folder import once
from automl.tasks.image_classification.data import dataset as caches
from automl.tasks.image_classification.data.dataset import ImageCache, Images, list_images, open_image_cache


def slow_down() -> None:
    decode = caches.decode
    caches.decode = lambda *arguments: (time.sleep(0.01), decode(*arguments))[1]


def write_often() -> None:
    arrow.BATCH_BYTES = 2000
    slow_down()


FORK = multiprocessing.get_context("fork")  # another program would import torch again


def opener(root: Path, log: Path, change: Callable[[], object] = slow_down) -> BaseProcess:
    """Open the dataset in another process, which first calls `change`, and writes its messages to `log`."""

    def work() -> None:
        sys.stderr = log.open("w", buffering=1)
        change()
        print(len(train(root).labels), file=sys.stderr)

    process = FORK.Process(target=work)
    process.start()
    return process


def train(root: Path, side: int = 8) -> ImageCache:
    listing = list_images("folder", root, side)
    return open_image_cache(listing.splits["train"], listing.classes, side, "train")


def content(cache: Path) -> list[str]:
    """Return the names of files in the cache, without locks."""
    return sorted(path.name for path in cache.iterdir() if path.is_file() and path.suffix != ".lock")


@pytest.fixture
def root(tmp_path: Path, make_folder: Callable[..., Path]) -> Path:
    return make_folder(tmp_path / "d", {"train/a": 100, "train/b": 150, "test/a": 1})


def test_columns(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "BATCH_BYTES", 64 * (8 * 8 * 3 + 32))
    opened = train(root)
    assert [len(block) for block in opened.blocks] == [64, 64, 64, 58]
    assert opened.labels.tolist() == [0] * 100 + [1] * 150
    assert np.unique(opened.aspect).tolist() == pytest.approx([16 / 12])
    assert opened.names[100] == "train/b/0000.png"
    assert (opened.classes, opened.side, opened.skipped) == (("a", "b"), 8, ())


def test_unchanged_files_have_one_cache_file(
    root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = train(root)
    assert train(root).path == first.path
    root = root.rename(root.with_name("moved"))
    assert train(root).path == first.path
    assert len(content(cache)) == 1
    assert train(root, side=16).path != first.path
    (root / "train/a/0000.png").write_bytes((root / "train/a/0001.png").read_bytes())
    assert train(root).path != first.path
    (root / "train/a/0002.png").rename(root / "train/b/9999.png")
    assert len(content(cache)) == 3
    first = train(root)
    assert first.labels.tolist() == [0] * 99 + [1] * 151
    monkeypatch.setattr(digests, "_content", None)
    monkeypatch.setattr(caches, "decode", None)
    assert train(root).path == first.path


def test_images_that_would_fill_the_disk_stay_files(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = torch.tensor([3, 249, -1, 0, 3])
    expected = Images(train(root)).gather(rows)
    monkeypatch.setenv("AUTOML_CACHE", str(tmp_path / "smaller"))
    free = 2 * 250 * 8 * 8 * 3
    monkeypatch.setattr(caches, "free_bytes", lambda _: free - 1)
    kept = train(root)
    assert "250 train images are kept as files" in capsys.readouterr().err
    assert kept.encoded
    assert kept.read_file(0) == (root / "train/a/0000.png").read_bytes()
    assert torch.equal(Images(kept).gather(rows), expected)
    monkeypatch.setattr(caches, "free_bytes", lambda _: free)
    assert train(root).path == kept.path, "they are not decoded where they are files already"


def test_damaged_images_are_left_out_or_an_error(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "train/a/0003.png").write_bytes(b"no picture")
    half = (root / "train/b/0005.png").read_bytes()
    (root / "train/b/0005.png").write_bytes(half[: len(half) // 2])
    opened = train(root)
    assert opened.skipped == ("train/a/0003.png", "train/b/0005.png")
    assert opened.labels.tolist() == [0] * 99 + [1] * 149
    assert "a/0003.png (UnidentifiedImageError: cannot identify image file); " in capsys.readouterr().err
    (root / "train/a/gone.png").symlink_to("nowhere")
    with pytest.raises(InputError, match=r"gone.png cannot be read"):
        train(root)


def test_many_damaged_images_are_an_error(root: Path, cache: Path) -> None:
    for i in range(6):
        (root / f"train/a/{i:04}.png").write_bytes(b"")
    with pytest.raises(InputError, match=r"at most 5 of the train images.*6 images.*train/a/0000.png"):
        train(root)
    assert content(cache) == []


@pytest.mark.parametrize("damage", ["truncated", "empty", "zeroed", "garbage"])
def test_damaged_cache_is_built_again(damage: str, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = train(root)
    path, pixels = first.path, np.concatenate(first.blocks)
    del first
    whole = path.read_bytes()
    half = len(whole) // 2
    bad = {"truncated": whole[:half], "empty": b"", "garbage": b"x" * len(whole)}
    bad["zeroed"] = whole[:1024].ljust(len(whole) - 1024, b"\0") + whole[-1024:]
    path.unlink()
    path.write_bytes(bad[damage])
    assert (np.concatenate(train(root).blocks) == pixels).all()
    assert "was damaged and is built again" in capsys.readouterr().err


def test_two_processes_build_one_file(root: Path, cache: Path, tmp_path: Path) -> None:
    logs = [tmp_path / "first", tmp_path / "second"]
    for process in [opener(root, log) for log in logs]:
        process.join()
    texts = [log.read_text() for log in logs]
    assert [text.splitlines()[-1] for text in texts] == ["250", "250"]
    assert sum("decoded 250 train images" in text for text in texts) == 1
    assert len(content(cache)) == 1


def test_killed_build_is_repeated(root: Path, cache: Path, tmp_path: Path) -> None:
    process = opener(root, tmp_path / "log", write_often)
    while not any(path.stat().st_size > 2000 for path in cache.glob("*.tmp")):
        time.sleep(0.01)
    process.kill()
    process.join()
    assert [name.endswith(".tmp") for name in content(cache)] == [True]
    assert len(train(root).labels) == 250
    assert [name.endswith(".arrow") for name in content(cache)] == [True]


def test_files_of_killed_processes_are_deleted(cache: Path) -> None:
    cache.mkdir()
    held = cache / "held.arrow.12.tmp"
    for left in (held, cache / "other.arrow.34.tmp", cache / "other.arrow.34.tmp.archive.zip"):
        left.write_bytes(b"half")
    (cache / "folder.56.tmp").mkdir()
    with FileLock(cache / "held.arrow.lock"):
        once(cache / "mine", lambda path: path.touch())
    assert content(cache) == ["held.arrow.12.tmp", "mine"], "another process is making it"
    assert not (cache / "folder.56.tmp").exists()


@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="files have no size limit here")
def test_full_disk(root: Path, cache: Path, tmp_path: Path) -> None:
    """Simulate a full disk by a limit on the size of files: the write fails half-way."""
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (20_000, 20_000))
    process = opener(root, tmp_path / "log", limit)
    process.join()
    errors = (tmp_path / "log").read_text()
    assert process.exitcode == 1
    assert "InputError: no disk space left" in errors
    assert f"disk full at {cache}, about 48kB needed" in errors
    assert "AUTOML_CACHE" in errors
    assert content(cache) == []

"""Hashes of content, remembered so that a dataset is not read again only to see that it is the same."""

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from attention.errors import InputError
from automl.data.items import Item
from automl.data.progress import progress
from automl.data.store import once

HEX = 64  # characters of a SHA-256


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def file_digest(path: Path, cache: Path) -> str:
    """The SHA-256 of a file's bytes. Raises InputError when it cannot be read."""
    return _remembered([_stamp(path)], lambda: _content(path), cache)


def items_digest(items: Sequence[Item], classes: Sequence[str], cache: Path) -> str:
    """A SHA-256 over the classes, and over every item's content and label, in order.

    Raises InputError when a file cannot be read.
    """
    labels = [*classes, *(str(item.label) for item in items)]

    def read() -> str:
        with ThreadPoolExecutor(cores()) as pool, progress("hashing images", len(items)) as advance:
            contents = []
            for content in pool.map(_content, (item.image for item in items)):
                contents.append(content)
                advance(1)
        return _combined([*labels, *contents])

    return _remembered([*labels, *(_stamp(item.image) for item in items)], read, cache)


def _remembered(stamps: Iterable[str], compute: Callable[[], str], cache: Path) -> str:
    memo = cache / "digests" / _combined(stamps)
    once(
        memo, lambda path: _write(path, compute()), lambda path: path.exists() and path.stat().st_size == HEX
    )
    return memo.read_text()


def _write(path: Path, text: str) -> None:
    path.write_text(text)


def _combined(texts: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode("utf-8", "surrogateescape") + b"\0")
    return digest.hexdigest()


def _stamp(image: Path | np.ndarray) -> str:
    """Cheap to take, and another one whenever the content is another."""
    if isinstance(image, np.ndarray):
        return _content(image)
    try:
        state = image.stat()
    except OSError as error:
        raise _unreadable(image, error) from error
    return f"{image.absolute()}:{state.st_size}:{state.st_mtime_ns}"


def _content(image: Path | np.ndarray) -> str:
    if isinstance(image, np.ndarray):
        return hashlib.sha256(f"{image.dtype}{image.shape}".encode() + image.tobytes()).hexdigest()
    try:
        with open(image, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _unreadable(image, error) from error


def _unreadable(path: Path, error: OSError) -> InputError:
    return InputError(f"{path} cannot be read ({error.strerror}); make it readable or remove it")

"""Compute SHA-256 of files. The results are cached, so that an unchanged dataset is not read again."""

import hashlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from automl.base.process import count_cores
from automl.base.terminal import progress
from automl.data.files import unreadable_error
from automl.storage.cache_folder import cache_root, once

SIZE = 32  # bytes of a SHA-256
CHUNK = 64  # files that a thread hashes in a row


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal. Raises InputError if it cannot be read."""
    return hash_contents([path])[0].hex()


def hash_contents(images: Sequence[Path | np.ndarray]) -> list[bytes]:
    """Return the SHA-256 of each file's bytes, or of each array. Raises InputError for an unreadable file."""

    def read() -> bytes:
        chunks = [images[start : start + CHUNK] for start in range(0, len(images), CHUNK)]
        with ThreadPoolExecutor(count_cores()) as pool, progress("hashing files", len(images)) as advance:
            read = []
            for chunk, hashes in zip(
                chunks, pool.map(lambda chunk: b"".join(map(_content, chunk)), chunks), strict=True
            ):
                read.append(hashes)
                advance(len(chunk))
        return b"".join(read)

    size = SIZE * len(images)
    memo = cache_root() / "contents" / hash_all(map(_stamp, images)).hex()
    once(
        memo,
        lambda path: path.write_bytes(read()),
        lambda path: path.exists() and path.stat().st_size == size,
    )
    whole = memo.read_bytes()
    return [whole[i : i + SIZE] for i in range(0, size, SIZE)]


def hash_all(strings: Iterable[str | bytes]) -> bytes:
    """Return one SHA-256 over all strings, in order."""
    digest = hashlib.sha256()
    for string in strings:
        digest.update(
            (string if isinstance(string, bytes) else string.encode("utf-8", "surrogateescape")) + b"\0"
        )
    return digest.digest()


def _stamp(image: Path | np.ndarray) -> str | bytes:
    """Return a string that is cheap to get and changes with the content."""
    if isinstance(image, np.ndarray):
        return _content(image)
    try:
        state = image.stat()
    except OSError as error:
        raise unreadable_error(image, error) from error
    return f"{image.absolute()}:{state.st_size}:{state.st_mtime_ns}"


def _content(image: Path | np.ndarray) -> bytes:
    if isinstance(image, np.ndarray):
        return hashlib.sha256(f"{image.dtype}{image.shape}".encode() + image.tobytes()).digest()
    try:
        with open(image, "rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError as error:
        raise unreadable_error(image, error) from error

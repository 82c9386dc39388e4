"""Files of a dataset: walk its folders, find the files that it names, convert names to text, hash contents.

The SHA-256 of files are cached, so that an unchanged dataset is not read again.
"""

import hashlib
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from io import BytesIO
from pathlib import Path, PurePath
from typing import TypeVar

import numpy as np

from automl.base.errors import InputError
from automl.base.process import count_cores
from automl.base.terminal import progress
from automl.base.text import is_special
from automl.storage.cache_folder import cache_root, once

Input = TypeVar("Input")


def is_file(path: Path) -> bool:
    """Return whether `path` is a file. A name that is too long for the system is none."""
    try:
        return path.is_file()
    except OSError:
        return False


def unreadable_error(path: Path, error: OSError) -> InputError:
    return InputError(f"{path} cannot be read ({error.strerror}); make it readable or remove it")


def name_to_text(name: str | PurePath) -> str:
    r"""Return a file name or relative path as text, with `\\xe9` for a byte that is not UTF-8.

    Names from old archives and foreign disks often have such bytes, which neither Arrow nor JSON in UTF-8
    accepts.
    """
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def normalise_nfc(text: str) -> str:
    """Return text with each accented letter as one character (NFC), so that equal names compare equal.

    Keyboards write `é` as one character. macOS writes file names with the letter and the accent as two (NFD).
    """
    return unicodedata.normalize("NFC", text)


def find_on_disk(folder: Path, name: str | PurePath) -> Path:
    """Return the path of `name` in `folder` as the disk has it: composed, decomposed, or as it is."""
    path = folder / name
    if is_file(path) or str(name).isascii():
        return path
    others = (folder / unicodedata.normalize(form, str(name)) for form in ("NFC", "NFD"))
    return next(filter(is_file, others), path)


OTHERS = frozenset({"node_modules", "site-packages", "__pycache__"})  # folders with code of others
IMAGES = re.compile(r"(jpeg)?(image|img|photo|picture)s?", re.I)  # names of folders
MASKS = re.compile(
    r"((seg|segmentation)_?)?(mask|label|annotation|annot)s?|ground_?truth|gt|segmentation(s|class)?", re.I
)
CLUTTER = ("thumbs.db", "desktop.ini", "ehthumbs.db", "$recycle.bin", "@eadir", "__macosx")


def is_clutter(name: str) -> bool:
    """Return whether a file is hidden or the system's, such as `._a.jpg`, `.DS_Store`, `Thumbs.db`."""
    return name.startswith(".") or name.lower() in CLUTTER


def walk(
    root: Path,
    *,
    above: tuple[Path, ...] = (),
    clutter: list[Path] | None = None,
    links: list[Path] | None = None,
) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Yield each folder below `root` with its folders and files, sorted. Links to folders are followed.

    Folders may be removed from the list, as in `os.walk`. A link to a folder above it, also one of `above`,
    or to one that was already walked, is not followed. Pipes and devices are left out. The lists `clutter`
    and `links` receive the files that `is_clutter` leaves out, and the links that are not followed. Raises
    InputError if a folder cannot be read.
    """
    seen: set[Path] = set()
    pending = [(root, tuple(map(_real, above)))]
    while pending:
        folder, above = pending.pop()
        real = _real(folder)
        if real in seen:  # A link led to it in the meantime.
            continue
        seen.add(real)
        above = (*above, real)
        folders, files = [], []
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            raise unreadable_error(folder, error) from error
        for entry in entries:
            path, is_folder = Path(entry.path), entry.is_dir()
            if is_clutter(entry.name):
                if clutter is not None and not is_folder:
                    clutter.append(path)
            elif not is_folder:
                if entry.is_file() or not is_special(path):
                    files.append(entry.name)
            elif entry.is_symlink() and (_real(path) in seen or links_to_parent(path, above)):
                if links is not None:
                    links.append(path)
            else:
                folders.append(entry.name)
        yield folder, folders, files
        pending += [(folder / name, above) for name in reversed(folders)]


def links_to_parent(folder: Path, above: tuple[Path, ...]) -> bool:
    """Return whether `folder` is a link to one of the folders `above`, or to a parent of one."""
    real = _real(folder)
    return any(other == real or real in other.parents for other in map(_real, above))


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def list_folders(root: Path) -> dict[str, Path]:
    """Return the folders in a folder by name."""
    return {path.name: path for path in sorted(root.iterdir()) if path.is_dir() and not is_clutter(path.name)}


def list_files(folder: Path) -> list[Path]:
    """Return all files in a folder and below it."""
    return [path / name for path, _, names in walk(folder) for name in names]


def find_labels_of_images(folder: Path) -> tuple[str, str, list[Path]] | None:
    """Return the names of a folder of images and of one with something for each of them, and its files."""
    folders = list_folders(folder)
    images = [name for name in folders if IMAGES.fullmatch(name)]
    for name in filter(MASKS.fullmatch, folders):
        if images and (files := list_files(folders[name])):
            return images[0], name, files
    return None


class LoadedFile(BytesIO):
    """The content of a file, for a machine that does not see it. Messages show its path."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.read_bytes())
        self.path = str(path)

    read_bytes = BytesIO.getvalue

    def __repr__(self) -> str:
        return self.path


def load_files(inputs: Sequence[Input]) -> list[Input]:
    """Return dataclasses with a `LoadedFile` for each path, since another machine may not see the files."""

    def load(item: Input) -> Input:
        values = getattr(item, "__dict__", {}).items()  # A number or a drawn scene has none.
        with suppress(OSError):  # It is reported as any file that cannot be read.
            files = {key: LoadedFile(value) for key, value in values if isinstance(value, Path)}
            return replace(item, **files) if files else item  # type: ignore[type-var]
        return item

    with ThreadPoolExecutor(count_cores()) as pool:
        return list(pool.map(load, inputs))


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

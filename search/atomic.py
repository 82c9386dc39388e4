"""Temporary names of files and folders that are being written, and removal of those that were left behind.

Whatever is written goes to `.NAME.PID` beside its place first, and takes its name when it is whole. A process
that is killed leaves that temporary name; the next one that writes the same thing removes it.
"""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock

_TEMPORARY = re.compile(r"\.(?P<name>.+)\.\d+")


def temporary(target: Path) -> Path:
    """Return the temporary name of `target` for this process."""
    return target.with_name(f".{target.name}.{os.getpid()}")


def is_temporary(name: str) -> bool:
    """Return whether a file or folder of this name was being written."""
    return _TEMPORARY.fullmatch(name) is not None


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield a temporary path beside `target`, which takes its place when the block has ended well."""
    new = temporary(target)
    try:
        yield new
        os.replace(new, target)
    finally:
        remove(new)


def remove(path: Path) -> None:
    """Delete a file, or a folder with everything in it, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(FileNotFoundError, NotADirectoryError):  # the latter where a folder above it is a file
            path.unlink()


def sweep(folder: Path, name: str | None = None) -> None:
    """Delete the temporary files and folders in `folder`: those of `name`, or all.

    Call it with a lock held that keeps other processes from writing them.
    """
    for path in [*folder.iterdir()] if folder.is_dir() else []:
        match = _TEMPORARY.fullmatch(path.name)
        if match is not None and name in (None, match["name"]):
            remove(path)


@contextmanager
def locked(target: Path, timeout: float = -1) -> Iterator[None]:
    """Hold a lock beside `target`, `.NAME.lock`, which is deleted at the end of the block.

    timeout: seconds to wait for it; -1 for as long as it takes. Raises filelock.Timeout, and OSError where no
    file can be written there.
    """
    place = target.with_name(f".{target.name}.lock")
    place.touch()  # FileLock would wait for a place that cannot be written, too
    lock = FileLock(place)
    lock.acquire(timeout=timeout)
    try:
        yield
    finally:
        # FileLock sees that the file it waited for is gone, and then opens another one.
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()

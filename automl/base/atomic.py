"""Temporary names of files and folders that are being written, and removal of leftovers.

Files are first written to `.NAME.PID` in the target's folder, and renamed when they are complete. A process
that is killed leaves the temporary file, and the next process that writes the same target removes it.
"""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock

_TEMPORARY = re.compile(r"\.(?P<name>.+)\.\d+")


def temporary_path(target: Path) -> Path:
    """Return the temporary name of `target` for this process."""
    return target.with_name(f".{target.name}.{os.getpid()}")


def is_temporary(name: str) -> bool:
    """Return True if a file or folder of this name is temporary."""
    return _TEMPORARY.fullmatch(name) is not None


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces `target` if the block succeeds."""
    new = temporary_path(target)
    try:
        yield new
        os.replace(new, target)
    finally:
        remove(new)


def remove(path: Path) -> None:
    """Delete a file, or a folder and its content, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(FileNotFoundError, NotADirectoryError):  # NotADirectoryError: a parent is a file
            path.unlink()


def sweep(folder: Path, name: str | None = None) -> None:
    """Delete temporary files and folders in `folder`: those of `name`, or all.

    The caller must hold a lock that keeps other processes from writing them.
    """
    for path in [*folder.iterdir()] if folder.is_dir() else []:
        match = _TEMPORARY.fullmatch(path.name)
        if match is not None and name in (None, match["name"]):
            remove(path)


@contextmanager
def locked(target: Path, timeout: float = -1) -> Iterator[None]:
    """Hold a lock file `.NAME.lock` beside `target`, and delete it at the end of the block.

    Waits up to `timeout` seconds; -1 waits without a limit. Raises filelock.Timeout, and OSError if the lock
    file cannot be written.
    """
    path = target.with_name(f".{target.name}.lock")
    path.touch()  # FileLock would also wait for a path that cannot be written
    lock = FileLock(path)
    lock.acquire(timeout=timeout)
    try:
        yield
    finally:
        # A waiting FileLock notices that its file was deleted, and opens a new one.
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()

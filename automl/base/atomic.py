"""Files and folders that are being written: their temporary names, removal of leftovers, and a full disk.

Files are first written to `.NAME.PID` in the target's folder, and renamed when they are complete. A process
that is killed leaves the temporary file, and the next process that writes the same target removes it.
"""

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock

from automl.base.units import format_size

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


STUDY_ROOM = 10e6  # approximate size of a study and the files of Ray beside it [bytes]

# No space, quota exceeded, file too large.
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class DiskFull(OSError):
    """The disk is full. The message names the path and the approximate size of the write."""

    def __str__(self) -> str:
        return str(self.strerror)


@contextmanager
def room_for(path: Path, needed: float | None) -> Iterator[None]:
    """Raise DiskFull for an error in the block that means a full disk.

    The block writes the file or folder `path`, about `needed` bytes if that is known.
    """
    try:
        yield
    except DiskFull:
        raise
    except Exception as error:
        if (code := full_disk_errno(error)) is None:
            raise
        raise DiskFull(code, format_disk_full(path, needed, code)) from error


def full_disk_errno(error: BaseException) -> int | None:
    """Return the errno of a full disk if `error` or one of its causes has it. Otherwise return None.

    PyTorch raises its own error for that of a file.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in NO_ROOM:
            return cause.errno
        cause = cause.__cause__ or cause.__context__
    return None


def format_disk_full(path: Path, needed: float | None, code: int = errno.ENOSPC) -> str:
    """Format `disk full at PATH, about 12MB needed, 3MB are free (No space left on device)`."""
    size = "" if needed is None else f" about {format_size(needed)} needed,"
    return f"disk full at {path},{size} {format_size(free_bytes(path))} are free ({os.strerror(code)})"


def free_bytes(path: Path) -> int:
    """Return the free bytes of the disk of `path`, which need not exist."""
    return shutil.disk_usage(next(folder for folder in (path, *path.parents) if folder.exists())).free

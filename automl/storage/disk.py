"""Detect a full disk, and format messages about it."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
    """Format `disk full at PATH, about 12 MB needed, 3 MB are free (No space left on device)`."""
    size = "" if needed is None else f" about {max(1, needed / 1e6):,.0f} MB needed,"
    return f"disk full at {path},{size} {free_bytes(path) / 1e6:,.0f} MB are free ({os.strerror(code)})"


def free_bytes(path: Path) -> int:
    """Return the free bytes of the disk of `path`, which need not exist."""
    return shutil.disk_usage(next(folder for folder in (path, *path.parents) if folder.exists())).free

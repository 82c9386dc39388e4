"""Detects a full disk and formats `disk full at ...`, for the errors that callers raise."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STUDY_ROOM = 10e6  # bytes that a study and what Ray writes beside it take, about

# No space, over the quota, over the largest size that a file may have here.
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class DiskFull(OSError):
    """No disk space for a write. Its text names the place and about how much space it needs."""

    def __str__(self) -> str:
        return str(self.strerror)


@contextmanager
def room_for(place: Path, needed: float | None) -> Iterator[None]:
    """Raises DiskFull for an error in the block that means a full disk.

    place: where the block writes. needed: bytes that it writes, about; None where unknown.
    """
    try:
        yield
    except DiskFull:
        raise
    except Exception as error:
        if (code := no_room(error)) is None:
            raise
        raise DiskFull(code, disk_full(place, needed, code)) from error


def no_room(error: BaseException) -> int | None:
    """The errno of a full disk, of `error` or of its causes; else None.

    PyTorch raises an error of its own over that of a file.
    """
    one: BaseException | None = error
    while one is not None:
        if isinstance(one, OSError) and one.errno in NO_ROOM:
            return one.errno
        one = one.__cause__ or one.__context__
    return None


def disk_full(place: Path, needed: float | None, code: int = errno.ENOSPC) -> str:
    """`disk full at PLACE, about 12 MB needed, 3 MB are free (No space left on device)`."""
    wanted = "" if needed is None else f" about {max(1, needed / 1e6):,.0f} MB needed,"
    return f"disk full at {place},{wanted} {free(place) / 1e6:,.0f} MB are free ({os.strerror(code)})"


def free(place: Path) -> int:
    """Bytes on the disk where `place` is or would be."""
    return shutil.disk_usage(next(path for path in (place, *place.parents) if path.exists())).free

"""The cache folder: a file under its final name is complete.

Each file is created under a temporary name while a lock is held, and then renamed. So a killed process
leaves no file that looks complete. Of two processes that need the same file, one creates it and the other
waits.
"""

import errno
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from automl.base.atomic import format_disk_full, full_disk_errno, remove
from automl.base.errors import InputError

# NAME.PID.tmp, and the files that a download keeps beside it.
_TEMPORARY = re.compile(r"(?P<name>.+)\.\d+\.tmp")
NOT_WRITABLE = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST})


def cache_root() -> Path:
    """Return the folder of decoded, extracted and downloaded data: `AUTOML_CACHE` or `~/.cache/automl`."""
    try:
        return Path(os.environ.get("AUTOML_CACHE") or "~/.cache/automl").expanduser().absolute()
    except RuntimeError as error:
        raise InputError(
            "this user has no home folder; set AUTOML_CACHE to a folder for the cache"
        ) from error


def once(
    target: Path,
    make: Callable[[Path], object],
    finished: Callable[[Path], bool] = Path.exists,
    *,
    needed: float | None = None,
) -> Path:
    """Create a file or folder unless it is complete, and return its path.

    Args:
        target: The path.
        make: Creates it under a temporary path.
        finished: Returns True if the target is complete.
        needed: Its approximate size [bytes], for messages.

    Raises:
        InputError: The disk is full, or the folder cannot be written.
    """
    with _explained(target.parent, needed):
        if finished(target):
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target):
            if not finished(target):
                _sweep(target)
                temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
                try:
                    make(temporary)
                    os.replace(temporary, target)
                finally:
                    for path in _temporaries(target.parent).get(target.name, []):
                        remove(path)
    return target


@contextmanager
def _locked(target: Path) -> Iterator[None]:
    lock = FileLock(f"{target}.lock")
    try:
        lock.acquire(timeout=1)
    except Timeout:
        print(f"waiting for another process that prepares {target}", file=sys.stderr, flush=True)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _sweep(target: Path) -> None:
    """Delete temporary files of killed processes. They are those whose lock no other process holds."""
    # This process holds the lock of `target`.
    for name, paths in _temporaries(target.parent).items():
        lock = nullcontext() if name == target.name else FileLock(target.with_name(f"{name}.lock"), timeout=0)
        with suppress(Timeout), lock:
            for path in paths:
                remove(path)


def _temporaries(folder: Path) -> dict[str, list[Path]]:
    """Return the temporary files and folders in `folder` by their final names."""
    result: dict[str, list[Path]] = {}
    for path in folder.iterdir():
        if match := _TEMPORARY.match(path.name):
            result.setdefault(match["name"], []).append(path)
    return result


@contextmanager
def _explained(folder: Path, needed: float | None) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if (code := full_disk_errno(error)) is not None:
            problem = f"no disk space left for the dataset's cache: {format_disk_full(folder, needed, code)}"
        elif error.errno in NOT_WRITABLE or (error.errno == errno.ENOENT and not folder.exists()):
            problem = f"the dataset's cache must be writable: {folder} ({error.strerror})"
        else:
            raise
        raise InputError(f"{problem}; free disk space or set AUTOML_CACHE to another folder") from error

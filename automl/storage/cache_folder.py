"""The cache folder: a file under its final name is complete.

Everything is made under a temporary name, with a lock held, and then renamed. So a process that is
killed leaves nothing that looks finished, and of two processes that need the same thing one makes it
and the other waits.
"""

import errno
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from attention.errors import InputError
from automl.storage.disk import disk_full, no_room

# NAME.PID.tmp, and what a download keeps beside it.
_TEMPORARY = re.compile(r"(?P<name>.+)\.\d+\.tmp")
NOT_WRITABLE = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST})


def cache_root() -> Path:
    """The folder for everything decoded, extracted or downloaded: `AUTOML_CACHE`, or `~/.cache/automl`."""
    return Path(os.environ.get("AUTOML_CACHE") or "~/.cache/automl").expanduser().absolute()


def once(
    target: Path,
    make: Callable[[Path], None],
    finished: Callable[[Path], bool] = Path.exists,
    *,
    needed: float | None = None,
) -> Path:
    """Returns `target`, a file or folder, after `make(temporary)` has made it if it was not `finished`.

    needed: bytes that it will have, about; None where unknown.

    Raises InputError when the disk is full or the folder cannot be written.
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
                    _remove(_temporaries(target.parent).get(target.name, []))
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
    """Delete what killed processes left beside `target`, whose lock this process holds, and of `target`.

    Nobody holds the locks of what they were making.
    """
    for name, paths in _temporaries(target.parent).items():
        if name == target.name:
            _remove(paths)
        else:
            with suppress(Timeout), FileLock(target.with_name(f"{name}.lock")).acquire(timeout=0):
                _remove(paths)


def _temporaries(folder: Path) -> dict[str, list[Path]]:
    """The temporary files and folders in `folder`, by the name of what they were to become."""
    result: dict[str, list[Path]] = {}
    for path in folder.iterdir():
        if match := _TEMPORARY.match(path.name):
            result.setdefault(match["name"], []).append(path)
    return result


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


@contextmanager
def _explained(folder: Path, needed: float | None) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if (code := no_room(error)) is not None:
            problem = f"no disk space left for the dataset's cache: {disk_full(folder, needed, code)}"
        elif error.errno in NOT_WRITABLE or (error.errno == errno.ENOENT and not folder.exists()):
            problem = f"the dataset's cache must be writable: {folder} ({error.strerror})"
        else:
            raise
        raise InputError(f"{problem}; free disk space or set AUTOML_CACHE to another folder") from error

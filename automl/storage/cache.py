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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from attention.errors import InputError
from automl.storage.disk import disk_full, no_room

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
                _sweep(target)  # under the lock, so that what is left here is of dead processes
                temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
                try:
                    make(temporary)
                    os.replace(temporary, target)
                finally:
                    _sweep(target)
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
    ours = re.compile(re.escape(target.name) + r"\.\d+\.tmp")
    for stale in target.parent.iterdir():
        if ours.match(stale.name):
            shutil.rmtree(stale) if stale.is_dir() else stale.unlink(missing_ok=True)


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

"""What the process of a trial says of an error that ends its work: is it the trial's, or the node's?"""

import shutil
import traceback
from collections.abc import Iterator
from pathlib import Path

from attention import InputError
from automl.data.store import NO_ROOM, cache_root
from automl.storage import Storage
from search.record import Report


def failure(error: Exception, folder: Storage) -> Report:
    """The report of a trial whose checkpoints go to `folder`. A full disk is a fault of the node."""
    text = str(error).strip().splitlines()
    line = f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
    if not any(isinstance(one, OSError) and one.errno in NO_ROOM for one in _chain(error)):
        return Report(error=line, traceback=traceback.format_exc())
    # The cache says so itself, in an InputError; what else is written goes to the folder.
    place = cache_root() if isinstance(error, InputError) else folder.local or cache_root()
    return Report(fault=f"{line}; {_free(place) / 1e6:.0f} MB are free")


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, and what it came of. PyTorch raises one of its own over that of a file."""
    one: BaseException | None = error
    while one is not None:
        yield one
        one = one.__cause__ or one.__context__


def _free(place: Path) -> int:
    """Bytes on the disk where `place` is or would be."""
    return shutil.disk_usage(next(path for path in (place, *place.parents) if path.exists())).free

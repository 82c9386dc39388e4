"""Files of the cache in Arrow's format: written once, mapped by every process that reads."""

import hashlib
import sys
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from automl.storage.cache import cache_root, once

METADATA = b"automl"  # the key of what a schema says beyond its columns, as JSON


class ArrowFile:
    """An opened file, whose columns stay on the disk until they are asked for. One of them is `name`.

    A subclass takes its columns in `__init__`, and raises ValueError, KeyError, IndexError or ArrowException
    for a file that is not whole: pages that a crash has left unwritten are zero.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reader = pa.ipc.open_file(pa.memory_map(str(path)))
        self.table = self.reader.read_all()  # maps the columns, copies none

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path,)  # another process maps the file, it does not receive its content

    @cached_property
    def names(self) -> list[str]:
        names: list[str] = self.table["name"].to_pylist()
        return names

    @classmethod
    def is_sound(cls, path: Path) -> bool:
        """Whether there is a whole file."""
        try:
            cls(path)
        except (pa.ArrowException, ValueError, KeyError, IndexError, FileNotFoundError, NotADirectoryError):
            return False
        return True

    @classmethod
    def cached(cls, key: bytes, write: Callable[[Path], str], *, needed: float) -> Self:
        """The file of this key, written where there is none or a damaged one.

        key: everything that its content depends on. write: to a path; returns what it did, in words.
        needed: bytes, about. Raises InputError like `write`, and when the cache folder is full or read-only.
        """
        target = cache_root() / f"{hashlib.sha256(key).hexdigest()[:32]}.arrow"

        def build(path: Path) -> None:
            if target.exists():
                print(f"{target} is damaged and is built again", file=sys.stderr, flush=True)
            begin = time.monotonic()
            done = write(path)
            print(f"{done} into {target} in {time.monotonic() - begin:.1f} s", file=sys.stderr, flush=True)

        return cls(once(target, build, cls.is_sound, needed=needed))

    @classmethod
    def copied(cls, name: str, fetch: Callable[[Path], None], *, needed: float) -> Self:
        """The file `name` of the cache, which `fetch` brings where it is not yet there."""
        return cls(once(cache_root() / name, fetch, cls.is_sound, needed=needed))

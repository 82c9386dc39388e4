"""Cache files in Arrow's format: written once, memory-mapped by every reading process.

The last batch of a file is empty. Its metadata holds the number of rows and facts that are known only at the
end.
"""

import hashlib
import json
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import PIL
import pyarrow as pa
import pyarrow.compute as pc

from automl.base.process import count_cores
from automl.base.terminal import progress
from automl.base.units import pluralize
from automl.data.files import SIZE
from automl.data.tally import Tally
from automl.storage.cache_folder import cache_root, once

METADATA = b"automl"  # key of a file's metadata, as JSON
SHARDS, WHOLE = "shards", "whole"  # keys in the metadata of an index: its shards, and its whole file's name
PIXELS = "image"  # the column of pictures
BATCH_BYTES = 64 << 20
AHEAD = 4  # inputs per core that are prepared in advance

Item = TypeVar("Item")
Result = TypeVar("Result")


class ArrowFile:
    """An opened file whose columns stay on the disk until they are read. One of them is `name`.

    `about` holds the metadata. A subclass reads its columns in `__init__`, and raises ValueError, KeyError,
    IndexError or ArrowException for an incomplete file: pages that a crash left unwritten are zero.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        self.table = reader.read_all()  # maps the columns without copying
        _, end = reader.get_batch_with_custom_metadata(reader.num_record_batches - 1)
        self.about: dict[str, Any] = json.loads((end or {})[METADATA])
        if len(self.table) != self.about["rows"]:
            raise ValueError("rows are missing")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path,)  # Another process maps the file instead of receiving its content.

    @cached_property
    def names(self) -> list[str]:
        return list(self.table["name"].to_pylist())

    def read_blocks(self, column: str, *shape: int) -> list[np.ndarray]:
        """Return each chunk of a column of fixed-size binary, uint8 `(rows, *shape)`, not copied."""
        width = math.prod(shape)
        return [
            np.frombuffer(chunk.buffers()[1], np.uint8, len(chunk) * width, chunk.offset * width).reshape(
                len(chunk), *shape
            )
            for chunk in self.table[column].chunks
            if len(chunk)
        ]

    def read_hashes(self, column: str) -> np.ndarray:
        """Return a column of SHA-256, uint8 `(N, 32)`. Raises ValueError if one is missing."""
        hashes = np.concatenate([np.empty((0, SIZE), np.uint8), *self.read_blocks(column, SIZE)])
        if not hashes.any(axis=1).all():
            raise ValueError("a hash is missing")
        return hashes

    def count_changes(self) -> Tally:
        """Count the changes to the inputs from the column `changes`, a list of texts for each input."""
        tally, column = Tally(), self.table["changes"]
        rows = pc.list_parent_indices(column.combine_chunks()).to_pylist()
        for row, change in zip(rows, pc.list_flatten(column).to_pylist(), strict=True):
            tally.keep(change, [self.names[row]])
        return tally

    @classmethod
    def is_sound(cls, path: Path) -> bool:
        """Return whether a complete file exists."""
        try:
            cls(path)
        except (pa.ArrowException, ValueError, KeyError, IndexError, FileNotFoundError, NotADirectoryError):
            return False
        return True

    @classmethod
    def open_cached(cls, key: bytes, write: Callable[[Path], str], *, needed: float) -> Self:
        """Open the file of this key, on which its content depends. Writes it if it is missing or damaged.

        `write` writes about `needed` bytes to a path and returns a phrase that says what it did. Raises
        InputError as `write` does, and if the cache folder is full or read-only.
        """
        target = cached_path(key)

        def build(path: Path) -> None:
            if target.exists():
                print(f"{target} was damaged and is built again", file=sys.stderr, flush=True)
            begin = time.monotonic()
            action = write(path)
            print(f"{action} into {target} in {time.monotonic() - begin:.1f} s", file=sys.stderr, flush=True)

        return cls(once(target, build, cls.is_sound, needed=needed))


def cached_path(key: bytes) -> Path:
    """Return the path of the cache file of a key, on which its content depends, as on these libraries."""
    versions = f"{PIL.__version__} {pa.__version__}".encode()
    return cache_root() / f"{hashlib.sha256(key + versions).hexdigest()[:32]}.arrow"


def write_batches(
    path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch], about: Mapping[str, Any]
) -> None:
    """Write an `ArrowFile`. `about` is read after the last batch, so that batches may add to it."""
    rows = 0
    with open(path, "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
            rows += len(batch)
        end = {METADATA: json.dumps({**about, "rows": rows})}
        writer.write_batch(pa.RecordBatch.from_pylist([], schema=schema), custom_metadata=end)


def write_tables(path: Path, tables: Iterator[pa.Table], about: Mapping[str, Any]) -> None:
    """Write an `ArrowFile` of at least one table. `about`: see `write_batches`."""
    first = next(tables)
    batches = (batch for table in chain([first], tables) for batch in table.to_batches())
    write_batches(path, first.schema, batches, about)


def write_columns(path: Path, columns: Mapping[str, pa.Array], about: Mapping[str, Any]) -> None:
    """Write an `ArrowFile` of one batch, so that each column is contiguous in memory."""
    batch = pa.record_batch(dict(columns))
    write_batches(path, batch.schema, [batch], about)


def write_rows(
    path: Path, schema: pa.Schema, rows: Iterable[Mapping[str, Any]], about: Mapping[str, Any]
) -> None:
    """Write an `ArrowFile` of rows, which need not fit into memory together. `about`: see `write_batches`."""

    def batches() -> Iterator[pa.RecordBatch]:
        pending: list[Mapping[str, Any]] = []
        held = 0
        for row in rows:
            pending.append(row)
            held += sum(len(value) for value in row.values() if isinstance(value, bytes))
            if held >= BATCH_BYTES:
                yield pa.RecordBatch.from_pylist(pending, schema=schema)
                pending, held = [], 0
        yield pa.RecordBatch.from_pylist(pending, schema=schema)

    write_batches(path, schema, batches(), about)


def write_mapped(
    title: str,
    schema: pa.Schema,
    about: Mapping[str, Any],
    make_row: Callable[[Item], Mapping[str, Any]],
    path: Path,
    inputs: Sequence[Item],
    threads: int | None = None,
) -> str:
    """Write an `ArrowFile` with a row for each input, called `title`. Return a phrase that says so."""
    write_rows(path, schema, map_in_threads(f"decoding {title}", inputs, make_row, threads=threads), about)
    return f"decoded {pluralize(len(inputs), title)}"


def map_in_threads(
    title: str, items: Sequence[Item], prepare: Callable[[Item], Result], *, threads: int | None = None
) -> Iterator[Result]:
    """Yield `prepare(item)` for each item in order, computed in threads, by default one a core.

    `title` names the shown progress.
    """
    threads = threads or count_cores()
    pending: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(threads) as pool, progress(title, len(items)) as advance:
        for i in range(len(items) + AHEAD * threads):
            if i < len(items):
                pending.append(pool.submit(prepare, items[i]))
            if i >= AHEAD * threads and pending:
                yield pending.popleft().result()
                advance(1)

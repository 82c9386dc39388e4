"""All pairs of a source, read once into an Arrow file that every process maps into its memory.

The file's name is a hash of the content of the files that it was made of. Columns: left, right (RGB bytes
of H x W x 3), disparity (float32 of H x W, infinite where it is not known), height, width (int32), name,
group (strings), split (int8, an index of SPLITS, -1 where the source gives none), changes (strings, what was
done to the images) and content (a SHA-256 of the pair's three files, 32 bytes). The schema's metadata holds
the number of rows.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from attention.errors import InputError, unknown
from automl.data import shared
from automl.data.arrow import METADATA, ArrowFile
from automl.data.digest import SIZE, contents, cores
from automl.data.progress import progress
from automl.data.splits import SPLITS
from automl.data.stereo import planes
from automl.data.stereo.files import read_disparity, read_views
from automl.data.stereo.pairs import Pair, find_pairs
from automl.data.tally import Tally
from automl.storage.cache import cache_root

FORMAT = 2  # of the file and of what the readers and `planes` make: raise it with any of them
SOURCES = ("planes", "pairs")
BATCH_BYTES = 64 << 20

SCHEMA = pa.schema(
    {
        "left": pa.large_binary(),
        "right": pa.large_binary(),
        "disparity": pa.large_binary(),
        "height": pa.int32(),
        "width": pa.int32(),
        "name": pa.string(),
        "group": pa.string(),
        "split": pa.int8(),
        "changes": pa.list_(pa.string()),
        "content": pa.binary(SIZE),
    }
)
Row = Mapping[str, Any]  # a value for each column


class PairsFile(ArrowFile):
    """An opened file of N pairs. `split` int8 (N,), `shapes` int64 (N, 2), `keys` uint8 (N, 32)."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.split: np.ndarray = self.table["split"].to_numpy()
        sides = [self.table[name].to_numpy().astype(np.int64) for name in ("height", "width")]
        self.shapes: np.ndarray = np.stack(sides, axis=1)
        self.groups: list[str] = self.table["group"].to_pylist()
        self.contents: list[bytes] = self.table["content"].to_pylist()
        self.keys: np.ndarray = np.frombuffer(b"".join(self.contents), np.uint8).reshape(-1, SIZE)
        rows = json.loads(self.table.schema.metadata[METADATA])["rows"]
        if len(self.split) != rows or not ((self.shapes > 0).all() and self.keys.any(axis=1).all()):
            raise ValueError("rows are missing")  # pages that a crash left unwritten are zero

    @cached_property
    def tally(self) -> Tally:
        """Pairs whose images were turned or rescaled, or that are double."""
        tally = Tally()
        tally.keep_copies("copies of another pair", zip(self.names, self.contents, strict=True))
        for name, changes in zip(self.names, self.table["changes"].to_pylist(), strict=True):
            for change in changes:
                tally.keep(change, [name])
        return tally

    def images(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        """Left and right, uint8 `(H, W, 3)`, not copied and not writable."""
        shape = (*self.shapes[row], 3)
        left, right = (np.frombuffer(self._bytes(name, row), np.uint8) for name in ("left", "right"))
        return left.reshape(shape), right.reshape(shape)

    def disparity(self, row: int) -> np.ndarray:
        """float32 `(H, W)`, infinite where it is not known; not copied and not writable."""
        return np.frombuffer(self._bytes("disparity", row), np.float32).reshape(self.shapes[row])

    def _bytes(self, column: str, row: int) -> Any:
        return self.table[column][int(row)].as_buffer()


def cached_pairs(source: str, path: str | Path | None) -> PairsFile:
    """The pairs of a source: `planes`, which is bundled, or `pairs` at `path`.

    Raises InputError for an unknown source, a path that is missing or not wanted, like `find_pairs`, and for
    a pair that cannot be used.
    """
    if source not in SOURCES:
        raise unknown("source of stereo pairs", source, SOURCES)
    if source == "planes":
        if path is not None:
            raise InputError(f"planes is bundled and takes no path, not {path}; drop --data")
        key = f"planes {FORMAT} {json.dumps(dict(planes.COUNTS))}".encode()
        return _cached(key, sum(planes.COUNTS.values()), _of_planes, planes.HEIGHT * planes.WIDTH)
    if path is None:
        raise InputError(
            "pairs need the path of a folder as of Scene Flow, KITTI or Middlebury, or of a CSV of left, "
            "right, disparity; pass --data PATH"
        )
    if (shared_set := shared.find(PairsFile, f"stereo {path}")) is not None:
        return shared_set[1]
    pairs = find_pairs(path)
    hashes = contents([file for pair in pairs for file in pair.files], cache_root())
    of_pairs = [hashlib.sha256(b"".join(hashes[i : i + 3])).digest() for i in range(0, len(hashes), 3)]
    named = json.dumps([(pair.name, pair.group, pair.split) for pair in pairs])
    key = f"stereo {FORMAT} {named}".encode() + b"".join(hashes)
    return _cached(key, len(pairs), lambda: _read(pairs, of_pairs), read_pair(pairs[0])[2].size)


def shared_name(source: str, path: str | Path | None) -> str | None:
    """Return the name of the pairs in a search's storage; None for bundled ones, which every node makes."""
    return f"stereo {path}" if source == "pairs" else None


def _cached(key: bytes, count: int, rows: Callable[[], Iterator[Row]], pixels: int) -> PairsFile:
    """pixels: of the first pair, for a guess at the file's size."""

    def write(target: Path) -> str:
        schema = SCHEMA.with_metadata({METADATA: json.dumps({"rows": count})})
        with (
            open(target, "wb") as sink,
            pa.ipc.new_file(sink, schema) as writer,
            progress("reading stereo pairs", count) as advance,
        ):
            some: list[Row] = []
            held = 0
            for row in rows():
                some.append(row)
                held += sum(len(row[name]) for name in ("left", "right", "disparity"))
                advance(1)
                if held >= BATCH_BYTES:
                    writer.write_batch(pa.RecordBatch.from_pylist(some, schema=schema))
                    some, held = [], 0
            writer.write_batch(pa.RecordBatch.from_pylist(some, schema=schema))
        return f"read {count} stereo pairs"

    return PairsFile.cached(key, write, needed=count * pixels * 10)


def _of_planes() -> Iterator[Row]:
    for number, split in enumerate(SPLITS):
        for i, (left, right, disparity) in enumerate(planes.pairs(split)):
            content = hashlib.sha256(left.tobytes() + right.tobytes() + disparity.tobytes()).digest()
            yield _row(f"{split}{i}", "", number, content, left, right, disparity)


def _read(pairs: Sequence[Pair], hashes: Sequence[bytes]) -> Iterator[Row]:
    with ThreadPoolExecutor(cores()) as pool:
        for start in range(0, len(pairs), 4 * cores()):  # few at once: a pair is some megabytes
            some = slice(start, start + 4 * cores())
            changes: list[list[str]] = [[] for _ in pairs[some]]
            for pair, content, done, arrays in zip(
                pairs[some], hashes[some], changes, pool.map(read_pair, pairs[some], changes), strict=True
            ):
                split = SPLITS.index(pair.split) if pair.split else -1
                yield _row(pair.name, pair.group, split, content, *arrays, done)


def read_pair(pair: Pair, changes: list[str] | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return both images and the disparities.

    changes: receives what was done to the images. Raises InputError where they cannot be read or differ in
    size.
    """
    disparity = read_disparity(pair.disparity)
    left, right, done = read_views(pair.left, pair.right, disparity.shape[::-1])
    if changes is not None:
        changes += done
    for file, array in ((pair.right, right), (pair.disparity, disparity)):
        if array.shape[:2] != left.shape[:2]:
            raise InputError(
                f"{file} must be of the size of its left image {pair.left}, "
                f"{left.shape[1]} x {left.shape[0]} pixels; got {array.shape[1]} x {array.shape[0]}"
            )
    return left, right, disparity


def _row(
    name: str,
    group: str,
    split: int,
    content: bytes,
    left: np.ndarray,
    right: np.ndarray,
    disp: np.ndarray,
    changes: Sequence[str] = (),
) -> Row:
    return {
        "left": left.tobytes(),
        "right": right.tobytes(),
        "disparity": disp.astype(np.float32).tobytes(),
        "height": left.shape[0],
        "width": left.shape[1],
        "name": name,
        "group": group,
        "split": split,
        "content": content,
        "changes": list(changes),
    }

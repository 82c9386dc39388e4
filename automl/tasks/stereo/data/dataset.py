"""Stereo pairs for the training loop, read once into an Arrow file that every process maps into its memory.

The name of the file is a hash of the content of the original files. Columns in addition to those of a
`RecordFile`: left, right (RGB bytes of H x W x 3), disparity (float32 of H x W, infinite if unknown), height,
width (int32) and changes (strings, see `Picture.changes`).
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from automl.base.errors import InputError, unknown
from automl.data import shared
from automl.data.arrow import write_mapped
from automl.data.files import SIZE, hash_contents
from automl.data.overview import Overview
from automl.data.records import RecordFile, Records
from automl.data.splits import SPLITS
from automl.tasks.stereo import StereoData
from automl.tasks.stereo.data import planes
from automl.tasks.stereo.data.pairs import Pair, find_pairs, read_disparity, read_views

FORMAT = 3  # Raise it when the format of the file, a reader or `planes` changes.
SOURCES = ("planes", "pairs")

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


class PairsFile(RecordFile):
    """An opened file of N pairs. `shapes` holds height and width, int64 `(N, 2)`."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        sides = [self.table[name].to_numpy().astype(np.int64) for name in ("height", "width")]
        self.shapes: np.ndarray = np.stack(sides, axis=1)
        if not (self.shapes > 0).all():
            raise ValueError("a side is out of range")

    def images(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        """Return left and right image, uint8 `(H, W, 3)`, not copied and read-only."""
        shape = (*self.shapes[row], 3)
        left, right = (np.frombuffer(self._bytes(name, row), np.uint8) for name in ("left", "right"))
        return left.reshape(shape), right.reshape(shape)

    def disparity(self, row: int) -> np.ndarray:
        """Return the disparities, float32 `(H, W)`, infinite if unknown; not copied and read-only."""
        return np.frombuffer(self._bytes("disparity", row), np.float32).reshape(self.shapes[row])

    def _bytes(self, column: str, row: int) -> Any:
        return self.whole[column][int(row)].as_buffer()


def open_cached_pairs(data: StereoData) -> PairsFile:
    """Return the pairs of a source: `planes`, which is bundled, or `pairs` at a path.

    Raises InputError for an unknown source, a path that is missing or not allowed, like `find_pairs`, and for
    a pair that cannot be used.
    """
    path = data.path
    if data.source not in SOURCES:
        raise unknown("source of stereo pairs", data.source, SOURCES)
    if data.source == "planes":
        if path is not None:
            raise InputError(f"planes is bundled and takes no path; got {path}. Drop --data")
        key = f"planes {FORMAT} {json.dumps(dict(planes.COUNTS))}".encode()
        indices = [(split, i) for split in SPLITS for i in range(planes.COUNTS[split])]
        return _open_cache(key, indices, _draw_row, planes.HEIGHT * planes.WIDTH)
    if path is None:
        raise InputError(
            "pairs need the path of a folder in the layout of Scene Flow, KITTI or Middlebury, or of a CSV "
            "with left, right and disparity. Pass --data PATH"
        )
    if (shared_set := shared.find_split(PairsFile, f"{shared_name(data)}")) is not None:
        return shared_set
    pairs = find_pairs(path)
    hashes = hash_contents([file for pair in pairs for file in pair.files])
    digests = (hashlib.sha256(b"".join(hashes[i : i + 3])).digest() for i in range(0, len(hashes), 3))
    pairs = [replace(pair, content=content) for pair, content in zip(pairs, digests, strict=True)]
    named = json.dumps([(pair.name, pair.group, pair.split) for pair in pairs])
    key = f"stereo {FORMAT} {named}".encode() + b"".join(hashes)
    return _open_cache(key, pairs, _read_row, read_pair(pairs[0])[2].size)


def shared_name(data: StereoData) -> str | None:
    """Return the name of the pairs in a search's storage; None for bundled ones, which every node draws."""
    return f"stereo {data.path}" if data.source == "pairs" else None


def _open_cache(key: bytes, pairs: Sequence[Any], row: Callable[[Any], Row], pixels: int) -> PairsFile:
    """Return the cache of `pairs`, a `row` for each. `pixels` is the size of the first pair."""
    write = partial(write_mapped, title := "stereo pairs", SCHEMA, {}, row)
    return shared.open_written(PairsFile, key, pairs, write, row=10 * pixels, title=title)


def _draw_row(index: tuple[str, int]) -> Row:
    split, i = index
    arrays = planes.draw_pair(split, i)
    content = hashlib.sha256(b"".join(array.tobytes() for array in arrays)).digest()
    return _make_row(*arrays, name=f"{split}{i}", group=None, split=SPLITS.index(split), content=content)


def _read_row(pair: Pair) -> Row:
    split, group = SPLITS.index(pair.split) if pair.split else -1, pair.group or None
    return _make_row(*read_pair(pair), name=pair.name, group=group, split=split, content=pair.content)


def read_pair(pair: Pair) -> tuple[np.ndarray, np.ndarray, np.ndarray, Sequence[str]]:
    """Return both images, disparities and changes to the images. Raises InputError if their sizes differ."""
    disparity = read_disparity(pair.disparity)
    left, right, changes = read_views(pair.left, pair.right, disparity.shape[::-1])
    for file, array in ((pair.right, right), (pair.disparity, disparity)):
        if array.shape[:2] != left.shape[:2]:
            raise InputError(
                f"{file} must have the size of its left image {pair.left}, "
                f"{left.shape[1]} x {left.shape[0]} pixels; got {array.shape[1]} x {array.shape[0]}"
            )
    return left, right, disparity, changes


def _make_row(
    left: np.ndarray, right: np.ndarray, disp: np.ndarray, changes: Sequence[str] = (), **columns: Any
) -> Row:
    return {
        "left": left.tobytes(),
        "right": right.tobytes(),
        "disparity": disp.astype(np.float32).tobytes(),
        "height": left.shape[0],
        "width": left.shape[1],
        "changes": list(changes),
        **columns,
    }


class StereoPairs(Records[PairsFile]):
    """The pairs of a source. Frames of one sequence are nearly the same, so a sequence is in one split."""

    noun = "stereo pairs"

    def pair(self, row: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return left and right image, uint8 `(H, W, 3)`, and disparity, float32 `(H, W)`; not writable."""
        return *self.file.images(row), self.file.disparity(row)

    def crop(
        self, row: int, at: tuple[float, float], height: int, width: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the same box of both images and the disparities, copied.

        `at` is the position of the box, from 0 (top, left) to 1. If the pair is smaller than the box, the
        bottom and the right are filled with zeros of unknown disparity.
        """
        crops = []
        for array, empty in zip(self.pair(row), (0, 0, np.inf), strict=True):
            box = np.full((height, width, *array.shape[2:]), empty, array.dtype)
            h, w = array.shape[:2]
            top, left = round(at[0] * max(0, h - height)), round(at[1] * max(0, w - width))
            source = array[top : top + height, left : left + width]
            box[: source.shape[0], : source.shape[1]] = source
            crops.append(box)
        return crops[0], crops[1], crops[2]


def open_pairs(data: StereoData) -> StereoPairs:
    """Open the pairs of a source. Raises InputError like `open_cached_pairs` and `Records`."""
    return _open_file(open_cached_pairs(data).path, data.subset)


@lru_cache(maxsize=4)
def _open_file(file: Path, subset: float) -> StereoPairs:
    return StereoPairs(PairsFile(file), subset)


READ = 50  # most pairs whose disparities are read, evenly spread


def summarise_stereo(path: str | Path) -> Overview:
    """Return the overview of stereo pairs. Raises InputError like `open_pairs`."""
    pairs = open_pairs(StereoData(source="pairs", path=str(path)))
    rows = {split: pairs.rows(split) for split in SPLITS}
    every = np.sort(np.concatenate(list(rows.values())))
    some = every[:: max(1, -(-len(every) // READ))]
    values = np.concatenate([pairs.file.disparity(int(row)).ravel() for row in some])
    known_values = values[np.isfinite(values)]
    known, (median, most, largest) = (
        len(known_values) / len(values),
        (float(np.quantile(known_values, fraction)) for fraction in (0.5, 0.99, 1)),
    )
    sizes = sorted({(int(width), int(height)) for height, width in pairs.file.shapes[every]})
    shown = ", ".join(f"{width} x {height}" for width, height in sizes[:3])
    counts = {split: len(numbers) for split, numbers in rows.items()}
    return Overview(
        {"pairs": counts},
        how=pairs.describe_splits(),
        tally=pairs.tally,
        notes={
            "sizes": f"{shown}{', ...' * (len(sizes) > 3)} pixels",
            "disparity": f"known of {known:.0%} of the pixels; median {median:.1f}, 99 % below {most:.1f}, "
            f"largest {largest:.1f} pixels",
        },
        pairs=counts,
        sizes=sizes,
        known=known,
        disparities=(median, most, largest),
    )

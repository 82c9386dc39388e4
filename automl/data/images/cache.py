"""A split, decoded once into an Arrow file that every process maps into its memory.

The file's name is a hash of the images' names, content, labels, classes and side, so a changed dataset
gets a file of its own and several trials, processes and users share one. Columns: image (fixed-size
binary, side x side x 3 bytes), label (int32), aspect (float32), name (string), content (the SHA-256 of
the file that it was made of, 32 bytes). The schema's metadata holds the classes, the side and the digest.
What is known at the end alone, the number of rows, the skipped images and the tally of what was done to the
others, is in the metadata of the last batch, which is empty.
"""

import json
import math
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from attention.errors import InputError
from automl.data.arrow import METADATA, ArrowFile
from automl.data.digest import SIZE, cores, items_digest
from automl.data.images.decode import decode
from automl.data.items import Item
from automl.data.progress import progress
from automl.data.tally import Tally

FORMAT = 3  # of the file and of what `decode` makes: raise it with either
BATCH_ROWS = 512
BATCH_BYTES = 64 << 20
MAX_SKIPPED = 0.01  # of the images
FEW = 5  # may be damaged in any case, if that is no more than a fifth
EXAMPLES = 5
UNDECODED = "that cannot be decoded"


class Cache(ArrowFile):
    """An opened cache file of N rows. Pixels stay on the disk until a row is asked for.

    `labels` int32 (N,), `aspect` float32 (N,), `contents` uint8 (N, 32), `blocks` uint8 arrays
    (rows, side, side, 3), which begin at the rows `starts`.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        table, last = self.table, self.reader.num_record_batches - 1
        _, end = self.reader.get_batch_with_custom_metadata(last)
        metadata = json.loads(table.schema.metadata[METADATA]) | json.loads(end[METADATA])
        self.classes: tuple[str, ...] = tuple(metadata["classes"])
        self.side: int = metadata["side"]
        self.digest: str = metadata["digest"]
        self.skipped: tuple[str, ...] = tuple(metadata["skipped"])
        self.tally = Tally.from_json(metadata["tally"])
        self.labels: np.ndarray = table["label"].to_numpy()
        self.aspect: np.ndarray = table["aspect"].to_numpy()
        self.blocks = self._bytes(table["image"], self.side, self.side, 3)
        self.contents = np.concatenate([np.empty((0, SIZE), np.uint8), *self._bytes(table["content"], SIZE)])
        self.starts = np.cumsum([0, *(len(block) for block in self.blocks)])
        self._check(metadata["rows"])

    def _bytes(self, column: pa.ChunkedArray, *shape: int) -> list[np.ndarray]:
        """Each chunk of a column of fixed-size binary, (rows, *shape)."""
        width = math.prod(shape)
        return [
            np.frombuffer(chunk.buffers()[1], np.uint8, len(chunk) * width, chunk.offset * width).reshape(
                len(chunk), *shape
            )
            for chunk in column.chunks
            if len(chunk)
        ]

    def _check(self, rows: int) -> None:
        """Pages that a crash has left unwritten are zero, and so would be the aspects in them."""
        if not len(self.labels) == len(self.aspect) == self.starts[-1] == rows:
            raise ValueError("rows are missing")
        if not ((self.labels >= 0) & (self.labels < len(self.classes)) & (self.aspect > 0)).all():
            raise ValueError("a label or an aspect is out of range")


def cached(items: Sequence[Item], classes: Sequence[str], side: int, what: str) -> Cache:
    """The cache of `items` at `side` pixels; `what` names them in messages.

    It is built where there is none or a damaged one. An image that cannot be decoded is left out and
    named in a warning. Raises InputError when these are more than 1 % and more than FEW, and when the cache
    folder is full or not writable.
    """
    digest = items_digest(items, classes)

    def write(path: Path) -> str:
        _write(path, items, {"classes": list(classes), "side": side, "digest": digest}, what)
        return f"decoded {len(items)} {what} images"

    return Cache.cached(f"{digest} {side} {FORMAT}".encode(), write, needed=len(items) * side * side * 3)


def _write(path: Path, items: Sequence[Item], metadata: dict[str, Any], what: str) -> None:
    side: int = metadata["side"]
    schema = pa.schema(
        {
            "image": pa.binary(side * side * 3),
            "label": pa.int32(),
            "aspect": pa.float32(),
            "name": pa.string(),
            "content": pa.binary(SIZE),
        },
        metadata={METADATA: json.dumps(metadata)},
    )
    rows = max(1, min(BATCH_ROWS, BATCH_BYTES // (side * side * 3)))
    skipped: dict[str, str] = {}
    tally = Tally()
    allowed = int(max(MAX_SKIPPED * len(items), min(FEW, len(items) / 5)))
    with (
        open(path, "wb") as sink,
        pa.ipc.new_file(sink, schema) as writer,
        ThreadPoolExecutor(cores()) as pool,
        progress(f"decoding {what} images", len(items)) as advance,
    ):
        for start in range(0, len(items), rows):
            some = items[start : start + rows]
            decoded = list(pool.map(lambda item: _attempt(item, side), some))
            skipped |= {
                item.name: out for item, out in zip(some, decoded, strict=True) if isinstance(out, str)
            }
            for item, out in zip(some, decoded, strict=True):
                for change in () if isinstance(out, str) else out[2]:
                    tally.keep(change, [item.name])
            if len(skipped) > allowed:
                raise InputError(_too_many(skipped, start + len(some), allowed, what))
            writer.write_batch(_batch(some, decoded, schema))
            advance(len(some))
        tally.leave_out(UNDECODED, skipped)
        end = {"rows": len(items) - len(skipped), "skipped": list(skipped), "tally": tally.to_json()}
        writer.write_batch(_batch([], [], schema), custom_metadata={METADATA: json.dumps(end)})
    if skipped:
        print(f"warning: left out {_listed(skipped)}", file=sys.stderr, flush=True)


def _attempt(item: Item, side: int) -> tuple[np.ndarray, float, list[str]] | str:
    """The decoded image with what was done to it, or why there is none."""
    changes: list[str] = []
    try:
        return *decode(item.image, side, changes), changes
    except MemoryError:
        raise
    except Exception as error:  # Pillow raises nearly anything for a damaged file
        return f"{type(error).__name__}: {error}"


def _batch(
    items: Sequence[Item], decoded: Sequence[tuple[np.ndarray, float, list[str]] | str], schema: Any
) -> Any:
    good = [(item, *out[:2]) for item, out in zip(items, decoded, strict=True) if not isinstance(out, str)]
    pixels = b"".join(image.tobytes() for _, image, _ in good)
    columns = [
        pa.FixedSizeBinaryArray.from_buffers(
            schema.field("image").type, len(good), [None, pa.py_buffer(pixels)]
        ),
        pa.array([item.label for item, _, _ in good], pa.int32()),
        pa.array([aspect for _, _, aspect in good], pa.float32()),
        pa.array([item.name for item, _, _ in good], pa.string()),
        pa.array([item.content for item, _, _ in good], pa.binary(SIZE)),
    ]
    return pa.record_batch(columns, schema=schema)


def _listed(skipped: dict[str, str]) -> str:
    examples = "; ".join(f"{name} ({why})" for name, why in list(skipped.items())[:EXAMPLES])
    return (
        f"{len(skipped)} images that cannot be decoded: {examples}{' ...' if len(skipped) > EXAMPLES else ''}"
    )


def _too_many(skipped: dict[str, str], seen: int, allowed: int, what: str) -> str:
    return (
        f"at most {allowed} of the {what} images may be damaged; among the first {seen} there are "
        f"{_listed(skipped)}; repair or remove them"
    )

"""A dataset, read once into an Arrow file that every process maps into its memory.

The name of the file is a hash of the content of the original files, so changed data get another file. All
splits are in one file, since they come from the same text, which takes long to parse. Sequences are stored
without padding, since one long sequence would enlarge all others. Gaps are filled (`fill_gaps`). Nothing is
normalised, since that depends on the subset that is trained on.

Columns in addition to those of a `RecordFile`: values (binary: float32 (C, T) with a T of its own), label
(int32), mean and variance of each channel (float64 (C,), NaN without values). Groups are subjects, and
content is that before gaps were filled.
"""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from automl.data.arrow import write_columns
from automl.data.files import SIZE, hash_contents
from automl.data.records import RecordFile
from automl.data.splits import SPLITS
from automl.tasks.sequence_classification.data.reading import MIN_STEPS, Recording

FORMAT = 3  # Raise it when the format of the file, a reader or `fill_gaps` changes.


class SequenceCache(RecordFile):
    """An opened cache file of N sequences of C channels. Values stay on the disk until they are read.

    Attributes:
        labels: int32 `(N,)`.
        lengths: number of steps of each sequence, int64 `(N,)`.
        means: float64 `(N, C)`.
        variances: float64 `(N, C)`.
        steps: the length of the longest sequence.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        table, about = self.table, self.about
        self.classes: tuple[str, ...] = tuple(about["classes"])
        self.channels: tuple[str, ...] = tuple(about["channels"])
        self.labels: np.ndarray = table["label"].to_numpy()
        count, channels = len(self.labels), len(self.channels)
        self.means, self.variances = (
            table[name].chunk(0).flatten().to_numpy().reshape(count, channels)
            for name in ("mean", "variance")
        )
        _, offsets, values = table["values"].chunk(0).buffers()
        self._starts = np.frombuffer(offsets, np.int64, count + 1) // 4
        self._values = np.frombuffer(values, np.float32, self._starts[-1])
        self.lengths: np.ndarray = np.diff(self._starts) // channels
        self.steps = int(self.lengths.max())
        if not (self.lengths >= MIN_STEPS).all():  # Missing pages read as zero.
            raise ValueError("a length is out of range")
        if not ((self.labels >= 0) & (self.labels < len(self.classes))).all():
            raise ValueError("a label is out of range")

    def values(self, row: int) -> np.ndarray:
        """Return a sequence, float32 `(C, T)`, not copied and read-only."""
        return self._values[self._starts[row] : self._starts[row + 1]].reshape(len(self.channels), -1)

    def read_padded(self, rows: np.ndarray) -> np.ndarray:
        """Return the sequences at `rows` `(n,)`, float32 `(n, C, steps)`, copied, padded with zeros."""
        out: np.ndarray
        if self.lengths.min() == self.steps:
            out = self._values.reshape(len(self.labels), len(self.channels), self.steps)[rows]
            return out
        out = np.zeros((len(rows), len(self.channels), self.steps), np.float32)
        for row, padded in zip(rows.tolist(), out, strict=True):
            padded[:, : self.lengths[row]] = self.values(row)
        return out


def open_sequence_cache(
    kind: str, files: Sequence[Path], read: Callable[[Sequence[Path]], Recording]
) -> SequenceCache:
    """Return the cache of the dataset in `files`, which have the format `kind`.

    The files are `read` if the cache is missing or damaged. Raises InputError like `read`, and if the cache
    folder is full or not writable.
    """

    def write(path: Path) -> str:
        columns, about = _make_columns(read(files))
        write_columns(path, columns, about)
        return f"read {len(columns['name'])} sequences"

    key = f"sequences {kind} {FORMAT}".encode() + b"".join(hash_contents(files))
    # The size of the files is a rough estimate: text takes twice the bytes of its numbers, NPZ about half.
    return SequenceCache.open_cached(key, write, needed=sum(file.stat().st_size for file in files))


def _make_columns(recording: Recording) -> tuple[dict[str, pa.Array], dict[str, Any]]:
    label_of = {name: i for i, name in enumerate(recording.classes)}
    splits = [(SPLITS.index(split), sequences) for split, sequences in recording.splits.items()]
    raw = [values for _, sequences in splits for values in sequences.values]
    filled = [fill_gaps(values) for values in raw]
    subjects: list[str | None] = []
    for _, own in splits:
        subjects += [None] * len(own.labels) if own.subjects is None else own.subjects
    columns: dict[str, pa.Array] = {
        "values": _make_ragged(filled),
        "label": pa.array(
            [label_of[label] for _, sequences in splits for label in sequences.labels], pa.int32()
        ),
        "split": pa.array([i for i, sequences in splits for _ in sequences.labels], pa.int8()),
        "group": pa.array(subjects, pa.string()),
        "name": pa.array([name for _, sequences in splits for name in sequences.names], pa.string()),
        "content": pa.array([_hash_values(values) for values in raw], pa.binary(SIZE)),
        "mean": _make_channel_column([values.mean(axis=1, dtype=np.float64) for values in filled]),
        "variance": _make_channel_column([values.var(axis=1, dtype=np.float64) for values in filled]),
    }
    return columns, {"classes": recording.classes, "channels": recording.channels}


def _make_ragged(arrays: Sequence[np.ndarray]) -> pa.Array:
    ends = np.cumsum([0, *(values.nbytes for values in arrays)], dtype=np.int64)
    flat = np.concatenate([values.reshape(-1) for values in arrays])
    buffers: list[Any] = [None, pa.py_buffer(ends), pa.py_buffer(flat)]
    return pa.Array.from_buffers(pa.large_binary(), len(arrays), buffers)


def _make_channel_column(arrays: Sequence[np.ndarray]) -> pa.Array:
    table = np.stack(arrays)  # (N, C)
    return pa.FixedSizeListArray.from_arrays(pa.array(table.reshape(-1)), table.shape[1])


def _hash_values(values: np.ndarray) -> bytes:
    """Hash the original values. All NaN bit patterns are treated alike."""
    unified = np.where(np.isnan(values), np.float32(np.nan), values)
    return hashlib.sha256(f"{values.shape}".encode() + unified.tobytes()).digest()


def fill_gaps(values: np.ndarray) -> np.ndarray:
    """Return a sequence `(C, T)` whose NaN values are filled by linear interpolation over steps.

    Before the first and after the last value of a channel, that value is repeated. A channel without any
    value stays NaN: `normalise` replaces it by the mean of the training data.
    """
    missing = np.isnan(values)
    if not missing.any():
        return values
    filled, steps = values.copy(), np.arange(values.shape[1])
    for channel in np.flatnonzero(missing.any(axis=1) & ~missing.all(axis=1)):
        known = ~missing[channel]
        filled[channel] = np.interp(steps, steps[known], values[channel, known])
    return filled

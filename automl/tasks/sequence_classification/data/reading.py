"""Parts that the readers of all formats of sequences share, and the cache of what they have read.

Arrow splits and converts millions of numbers; Python handles one string per line. A reader (`ts`, `ucihar`,
`long_csv`, `npz`) checks what is specific to its format. Faults that all formats can have are found here.

Every process maps the Arrow file of a dataset into its memory.
The name of the file is a hash of the content of the original files, so changed data get another file. All
splits are in one file, since they come from the same text, which takes long to parse. Sequences are stored
without padding, since one long sequence would enlarge all others. Gaps are filled (`fill_gaps`). Nothing is
normalised, since that depends on the subset that is trained on.

Columns in addition to those of a `RecordFile`: values (binary: float32 (C, T) with a T of its own), label
(int32), mean and variance of each channel (float64 (C,), NaN without values). Groups are subjects, and
content is that before gaps were filled.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from automl.base import text
from automl.base.errors import InputError
from automl.data.arrow import write_columns
from automl.data.files import SIZE, hash_contents, normalise_nfc
from automl.data.records import RecordFile
from automl.data.splits import SPLITS

BLOCK = 1 << 25  # characters that are split at once; the fields take several times as much memory
NANS = ("NaN", "nan", "NAN")


class NotANumber(ValueError):
    """A field that is no number, or does not fit into 32 bits, in the text with this index."""

    def __init__(self, index: int, field: str, reason: str = "is not a number") -> None:
        super().__init__(f"{quote(field)} {reason}")
        self.index, self.field, self.why = index, field, reason


def quote(field: str) -> str:
    """Return a field in quotes for a message, cut to 40 characters."""
    return repr(field if len(field) <= 40 else f"{field[:37]}...")


def read_text(path: Path) -> str:
    """Return a file's text, composed (NFC), invalid UTF-8 replaced. Raises InputError if it has none."""
    try:
        content = normalise_nfc(text.read_text(path, "replace"))
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); make it readable") from error
    if not content.strip():
        raise InputError(f"{path} is empty; fetch or write it again")
    return content


def parse_numbers(
    texts: Sequence[str], separator: str | None = None, missing: Sequence[str] = NANS
) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of all `texts` one after another, float32, and how many each text has, int64.

    The separator is one character, or None for white space. The fields `missing` become NaN. Raises
    NotANumber if another field is no number.
    """
    values, counts = [np.empty(0, np.float32)], [np.empty(0, np.int64)]
    start = 0
    while start < len(texts):
        stop, size = start, 0
        while stop < len(texts) and (size == 0 or size + len(texts[stop]) < BLOCK):
            size += len(texts[stop]) + 1
            stop += 1
        strings = pc.ascii_trim_whitespace(pa.array(texts[start:stop], pa.string()))
        fields = (
            pc.ascii_split_whitespace(strings) if separator is None else pc.split_pattern(strings, separator)
        )
        try:
            values.append(parse_fields(fields.flatten(), missing))
        except NotANumber as error:
            ends = fields.offsets.to_numpy()[1:] - fields.offsets[0].as_py()
            index = start + int(np.searchsorted(ends, error.index, side="right"))
            raise NotANumber(index, error.field, error.why) from None
        counts.append(pc.list_value_length(fields).to_numpy(zero_copy_only=False).astype(np.int64))
        start = stop
    return np.concatenate(values), np.concatenate(counts)


def parse_fields(fields: pa.Array, missing: Sequence[str] = NANS) -> np.ndarray:
    """Return float32 `(N,)` from N strings; a null or one of `missing` becomes NaN. Raises NotANumber."""
    try:  # Most data have only numbers, and looking for missing values takes as long as the rest.
        parsed = pc.cast(fields, pa.float32())
    except pa.ArrowInvalid:
        fields = pc.ascii_trim_whitespace(fields)
        fields = pc.if_else(pc.is_in(fields, pa.array(missing, pa.string())), None, fields)
        try:
            parsed = pc.cast(fields, pa.float32())
        except pa.ArrowInvalid:
            index = find_first_bad(fields, pa.float32())
            raise NotANumber(index, fields[index].as_py()) from None
    values = np.asarray(pc.fill_null(parsed, float("nan")))
    for index in np.flatnonzero(np.isinf(values))[:1]:
        raise NotANumber(int(index), fields[int(index)].as_py(), "is not finite in 32 bits")
    return values


def find_first_bad(fields: pa.Array, kind: pa.DataType) -> int:
    """Return the index of the first string that cannot be cast to `kind`, by bisection. There must be one."""
    low, high = 0, len(fields)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            pc.cast(fields[low:middle], kind)
        except pa.ArrowInvalid:
            high = middle
        else:
            low = middle
    return low


WHOLE = re.compile("-?[0-9]{1,18}")
MIN_STEPS = 2  # A single value is no time series.


@dataclass(frozen=True, kw_only=True)
class SplitSequences:
    """The N sequences of one split of a dataset.

    Attributes:
        values: each sequence, float32 `(C, T)` with a T of its own; NaN for a missing value.
        labels: `(N,)`.
        names: `(N,)`.
        locate: returns file and line of a sequence for messages.
        subjects: the person recorded in each sequence, `(N,)`; None if unknown.
    """

    values: Sequence[np.ndarray]
    labels: Sequence[str]
    names: Sequence[str]
    locate: Callable[[int], str]
    subjects: Sequence[str] | None = None


@dataclass(frozen=True, kw_only=True)
class Recording:
    """A whole dataset.

    Attributes:
        channels: names of the channels.
        classes: names of the classes of the train split.
        splits: the sequences by split: "train" and any others that the dataset defines.
    """

    channels: tuple[str, ...]
    classes: tuple[str, ...]
    splits: Mapping[str, SplitSequences]


def make_recording(
    channels: Iterable[str], classes: Iterable[str], splits: Mapping[str, SplitSequences]
) -> Recording:
    """Check the splits of a reader and return them as a dataset.

    Classes keep their order, and those without training data are dropped.

    Raises InputError with file and line for a sequence of one step, with no value or an infinite one, for a
    label that the train split does not have, and for fewer than two classes.
    """
    for sequences in splits.values():
        _check_values(sequences)
    train = splits["train"]
    labels = set(train.labels)
    known = tuple(name for name in classes if name in labels)
    if len(known) < 2:
        start = f", from {train.locate(0)} on" if len(train.labels) else ""
        raise InputError(
            f"the train split needs sequences of two classes; it has {len(train.labels)}, of "
            f"{', '.join(map(repr, known)) or 'no class'}{start}"
        )
    for split, sequences in splits.items():
        for i, label in enumerate(sequences.labels):
            if label not in labels:
                raise InputError(
                    f"{sequences.locate(i)}: the {split} label {quote(label)} must be among those of the "
                    f"train split: {', '.join(known[:20])}"
                )
    return Recording(channels=tuple(channels), classes=known, splits=splits)


def sort_labels(labels: Iterable[str]) -> list[str]:
    """Return each label once, sorted: as numbers if all are integers."""
    names = sorted(set(labels))
    return sorted(names, key=int) if all(WHOLE.fullmatch(name) for name in names) else names


def _check_values(sequences: SplitSequences) -> None:
    for i, values in enumerate(sequences.values):
        if values.shape[1] < MIN_STEPS:
            raise InputError(
                f"{sequences.locate(i)}: a sequence must have at least {MIN_STEPS} steps; "
                f"got {values.shape[1]}. Remove it"
            )
        if np.isfinite(values).all():
            continue
        if np.isinf(values).any():
            raise InputError(
                f"{sequences.locate(i)}: values must be finite and fit into 32 bits; one is infinite"
            )
        if np.isnan(values).all():
            raise InputError(f"{sequences.locate(i)}: all values of the sequence are missing; remove it")


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
        "values": pa.array([values.tobytes() for values in filled], pa.large_binary()),
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

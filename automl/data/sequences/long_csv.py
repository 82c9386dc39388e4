"""CSV files in the long format: a row for each step, a column for each channel.

    series,time,x,y,label,subject,split
    walk-1,0.00,0.1,0.9,walking,anna,train
    walk-1,0.02,0.2,,walking,anna,train

`series` identifies the sequence, `time` orders its steps: numbers or ISO 8601 times. `label` is
the same in all rows of a sequence. `subject` (of whom it is), or `group` instead, and `split` (`train`,
`validation` or `test`) may be left out. Each other column is a channel; an empty field, `?` or NaN is a
missing value. Steps are taken as equally spaced: resample what is not.
"""

import io
import re
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from attention.errors import InputError
from automl.data.csv_table import numbered_rows
from automl.data.sequences.number_text import NANS, NotANumber, find_first_bad, parse_fields, quote, read_text
from automl.data.sequences.recording import Recording, SplitSequences, make_recording, sort_labels
from automl.data.splits import SPLITS

SUFFIX = ".csv"
NEEDED, OPTIONAL = ("series", "time", "label"), ("group", "subject", "split")
MISSING = ("", "?", *NANS)


def find_files(path: Path) -> tuple[Path, ...] | None:
    """The file, if it is one by its name."""
    return (path,) if path.suffix.lower() == SUFFIX and path.is_file() else None


def read_recording(files: Sequence[Path]) -> Recording:
    """The dataset of one CSV file. Raises InputError with file and line for what is wrong."""
    (file,) = files
    table = _read_columns(file, NEEDED)
    channels = _list_channels(file, table)
    codes, names = _encode_texts(file, table["series"], "series")
    order = _order_rows(file, codes, table["time"])
    pieces = _split_values(file, table, channels, codes, order)
    starts = np.cumsum(np.bincount(codes, minlength=len(names)))[:-1]
    first = order[np.append(0, starts)]  # the row of each sequence's first step
    told = {
        name: _constant_in_series(file, table[name], name, codes, order, first)
        for name in ("label", *OPTIONAL)
        if name in table.column_names
    }
    splits = told.get("split", ["train"] * len(names))
    for row, split in zip(first.tolist(), splits, strict=True):
        if split not in SPLITS:
            raise InputError(
                f"{file}:{_find_line(file, row)}: split must be one of {', '.join(SPLITS)}, "
                f"not {quote(split)}"
            )
    if "train" not in splits:
        raise InputError(f"{file} has nothing to train on: no row where split is train")
    subjects = told.get("group", told.get("subject"))
    parts = {}
    for split in sorted(set(splits)):
        mine = [i for i, other in enumerate(splits) if other == split]
        parts[split] = SplitSequences(
            values=[pieces[i] for i in mine],
            labels=[told["label"][i] for i in mine],
            names=[names[i] for i in mine],
            locate=_make_locator(file, first[mine]),
            subjects=None if subjects is None else [subjects[i] for i in mine],
        )
    return make_recording(channels, sort_labels(parts["train"].labels), parts)


def read_series(file: Path, count: int) -> tuple[list[str], list[tuple[str, np.ndarray]]]:
    """The channels of a file and its sequences by their names; labels need not be there.

    Raises InputError like `read`.
    """
    table = _read_columns(file, ("series", "time"))
    channels = _list_channels(file, table)
    codes, names = _encode_texts(file, table["series"], "series")
    order = _order_rows(file, codes, table["time"])
    return channels, list(zip(names, _split_values(file, table, channels, codes, order), strict=True))


def _list_channels(file: Path, table: pa.Table) -> list[str]:
    channels = [name for name in table.column_names if name not in (*NEEDED, *OPTIONAL)]
    if not channels:
        raise InputError(f"{file} has no channels: columns beside {', '.join((*NEEDED, *OPTIONAL))}")
    return channels


def _split_values(
    file: Path, table: pa.Table, channels: Sequence[str], codes: np.ndarray, order: np.ndarray
) -> list[np.ndarray]:
    """The values of each sequence, float32 (C, T)."""
    values = np.empty((len(channels), len(codes)), np.float32)
    for row, name in zip(values, channels, strict=True):
        try:
            row[:] = parse_fields(table[name].combine_chunks(), MISSING)[order]
        except NotANumber as error:
            raise InputError(f"{file}:{_find_line(file, error.index)}: {name}: {error}") from None
    return np.split(values, np.cumsum(np.bincount(codes))[:-1], axis=1)


def _read_columns(file: Path, needed: Sequence[str]) -> pa.Table:
    """All columns as strings."""
    content = read_text(file)
    first, names = next(numbered_rows(content, file), (1, []))
    if lacking := [name for name in needed if name not in names]:
        raise InputError(
            f"{file}:{first}: a column {lacking[0]!r} is needed; the columns are {', '.join(names[:20])}"
        )
    if len(set(names)) != len(names) or "" in names:
        raise InputError(f"{file}:{first}: column names must be unique; they are {', '.join(names[:20])}")
    try:
        table = pa.csv.read_csv(
            io.BytesIO(content.encode()),
            pa.csv.ReadOptions(use_threads=False),  # with threads an error does not tell its row
            parse_options=pa.csv.ParseOptions(newlines_in_values='"' in content),
            convert_options=pa.csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False
            ),
        )
    except pa.ArrowInvalid as error:
        raise _row_error(file, str(error)) from error
    if not len(table):
        raise InputError(f"{file} has a header and no rows; write a row for each step")
    return table


def _row_error(file: Path, error: str) -> InputError:
    """Of an error such as `CSV parse error: Row #3: Expected 5 columns, got 4: a,1,`."""
    row = re.search(r"Row #(\d+): ", error)
    where, why = (f":{_find_line(file, int(row[1]) - 2)}", error[row.end() :]) if row else ("", error)
    return InputError(f"{file}{where}: {' '.join(why.split())[:200]}")


def _encode_texts(file: Path, column: pa.ChunkedArray, name: str) -> tuple[np.ndarray, list[str]]:
    """The number of each row's text, counted in the order in which they first appear; and the texts."""
    coded = pc.dictionary_encode(column.combine_chunks())
    names = coded.dictionary.to_pylist()
    codes = np.asarray(coded.indices)
    if "" in names:
        line = _find_line(file, int(np.argmax(codes == names.index(""))))
        raise InputError(f"{file}:{line}: {name} is empty")
    return codes, names


def _order_rows(file: Path, codes: np.ndarray, column: pa.ChunkedArray) -> np.ndarray:
    """The rows by sequence and time."""
    times = _parse_times(file, column.combine_chunks())
    order = np.lexsort((times, codes))
    same = (np.diff(codes[order]) == 0) & (np.diff(times[order]) == 0)
    for at in np.flatnonzero(same)[:1]:
        one, other = sorted((order[at], order[at + 1]))
        time, lines = column[int(other)].as_py(), (_find_line(file, one), _find_line(file, other))
        raise InputError(
            f"{file}:{lines[1]}: the time {time} is that of line {lines[0]} already, in the same series"
        )
    return order


def _parse_times(file: Path, column: pa.Array) -> np.ndarray:
    """Of whole numbers all digits count: nanoseconds since 1970 differ in their last."""
    for kind in (pa.int64(), pa.float64(), pa.timestamp("ns")):
        try:
            times = pc.cast(column, kind)
        except pa.ArrowInvalid:
            continue
        if kind != pa.float64():
            return np.asarray(pc.cast(times, pa.int64()))
        if np.isfinite(numbers := np.asarray(times)).all():
            return numbers
        raise _time_error(file, column, int(np.argmin(np.isfinite(numbers))))
    try:
        pc.cast(column[:1], pa.timestamp("ns"))
    except pa.ArrowInvalid:
        kind = pa.float64()
    raise _time_error(file, column, find_first_bad(column, kind))


def _time_error(file: Path, column: pa.Array, row: int) -> InputError:
    return InputError(
        f"{file}:{_find_line(file, row)}: time must be a number in all rows, or in all of them an ISO 8601 "
        f"time such as 2024-05-01T12:00:00, not {quote(column[row].as_py())}"
    )


def _constant_in_series(
    file: Path, column: pa.ChunkedArray, name: str, codes: np.ndarray, order: np.ndarray, first: np.ndarray
) -> list[str]:
    """What all rows of a sequence say, for each sequence."""
    said, texts = _encode_texts(file, column, name)
    same = said == said[first][codes]
    for row in np.flatnonzero(~same)[:1]:
        own, before = texts[said[row]], texts[said[first[codes[row]]]]
        raise InputError(
            f"{file}:{_find_line(file, row)}: {name} must be the same in all rows of a series: "
            f"{quote(own)}, not {quote(before)}"
        )
    return [texts[i] for i in said[first].tolist()]


def _make_locator(file: Path, rows: np.ndarray) -> Callable[[int], str]:
    return lambda i: f"{file}:{_find_line(file, rows[i])}"


def _find_line(file: Path, row: int) -> int:
    """Return the line on which a row begins, from 1. The file is read again, for a message alone.

    row: counted from 0, without the header. Rows can span lines, and empty lines are no rows.
    """
    lines = (line for line, _ in numbered_rows(read_text(file), file))
    return next(islice(lines, int(row) + 1, None))

"""CSV files in the long format: a row for each step, a column for each channel.

    series,time,x,y,label,subject,split
    walk-1,0.00,0.1,0.9,walking,anna,train
    walk-1,0.02,0.2,,walking,anna,train

`series` identifies the sequence. `time` orders its steps: numbers or ISO 8601 times. `label` is the same in
all rows of a sequence. `subject` (the person who was recorded), or `group` instead, and `split` (`train`,
`validation` or `test`) are optional. Every other column is a channel. An empty field, `?` or NaN is a missing
value. Steps are assumed to be equally spaced: resample other data first.
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

from automl.base.errors import InputError
from automl.data.csv_table import iterate_rows
from automl.data.splits import SPLITS
from automl.tasks.sequence_classification.data.reading import (
    NANS,
    NotANumber,
    Recording,
    SplitSequences,
    find_first_bad,
    make_recording,
    parse_fields,
    quote,
    read_text,
    sort_labels,
)

SUFFIX = ".csv"
NEEDED, OPTIONAL = ("series", "time", "label"), ("group", "subject", "split")
MISSING = ("", "?", *NANS)


def read_recording(files: Sequence[Path]) -> Recording:
    """Read the dataset of one CSV file. Raises InputError with file and line."""
    (file,) = files
    table = _read_columns(file, NEEDED)
    channels = _list_channels(file, table)
    codes, names = _encode_texts(file, table["series"], "series")
    order = _order_rows(file, codes, table["time"])
    pieces = _split_values(file, table, channels, codes, order)
    starts = np.cumsum(np.bincount(codes, minlength=len(names)))[:-1]
    first = order[np.append(0, starts)]  # the row of each sequence's first step
    columns = {
        name: _constant_in_series(file, table[name], name, codes, order, first)
        for name in ("label", *OPTIONAL)
        if name in table.column_names
    }
    splits = columns.get("split", ["train"] * len(names))
    for row, split in zip(first.tolist(), splits, strict=True):
        if split not in SPLITS:
            raise InputError(
                f"{file}:{_find_line(file, row)}: split must be one of {', '.join(SPLITS)}, "
                f"not {quote(split)}"
            )
    if "train" not in splits:
        raise InputError(f"{file} must have rows where split is train; it has none")
    subjects = columns.get("group", columns.get("subject"))
    recordings = {}
    for split in sorted(set(splits)):
        indices = [i for i, other in enumerate(splits) if other == split]
        recordings[split] = SplitSequences(
            values=[pieces[i] for i in indices],
            labels=[columns["label"][i] for i in indices],
            names=[names[i] for i in indices],
            locate=_make_locator(file, first[indices]),
            subjects=None if subjects is None else [subjects[i] for i in indices],
        )
    return make_recording(channels, sort_labels(recordings["train"].labels), recordings)


def read_series(file: Path, count: int) -> tuple[list[str], list[tuple[str, np.ndarray]]]:
    """Return channels and named sequences, with labels or not. Raises InputError like `read_recording`."""
    table = _read_columns(file, ("series", "time"))
    channels = _list_channels(file, table)
    codes, names = _encode_texts(file, table["series"], "series")
    order = _order_rows(file, codes, table["time"])
    return channels, list(zip(names, _split_values(file, table, channels, codes, order), strict=True))


def _list_channels(file: Path, table: pa.Table) -> list[str]:
    channels = [name for name in table.column_names if name not in (*NEEDED, *OPTIONAL)]
    if not channels:
        others = ", ".join((*NEEDED, *OPTIONAL))
        raise InputError(f"{file} has no channels, which are columns other than {others}")
    return channels


def _split_values(
    file: Path, table: pa.Table, channels: Sequence[str], codes: np.ndarray, order: np.ndarray
) -> list[np.ndarray]:
    """Return the values of each sequence, float32 `(C, T)`."""
    values = np.empty((len(channels), len(codes)), np.float32)
    for row, name in zip(values, channels, strict=True):
        try:
            row[:] = parse_fields(table[name].combine_chunks(), MISSING)[order]
        except NotANumber as error:
            raise InputError(f"{file}:{_find_line(file, error.index)}: {name}: {error}") from None
    return np.split(values, np.cumsum(np.bincount(codes))[:-1], axis=1)


def _read_columns(file: Path, needed: Sequence[str]) -> pa.Table:
    """Read all columns as strings."""
    content = read_text(file)
    first, names = next(iterate_rows(content, file), (1, []))
    if lacking := [name for name in needed if name not in names]:
        raise InputError(
            f"{file}:{first}: a column {lacking[0]!r} is needed; the columns are {', '.join(names[:20])}"
        )
    if len(set(names)) != len(names) or "" in names:
        raise InputError(f"{file}:{first}: column names must be unique; they are {', '.join(names[:20])}")
    try:
        table = pa.csv.read_csv(
            io.BytesIO(content.encode()),
            pa.csv.ReadOptions(use_threads=False),  # With threads an error does not name its row.
            parse_options=pa.csv.ParseOptions(newlines_in_values='"' in content),
            convert_options=pa.csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False
            ),
        )
    except pa.ArrowInvalid as error:
        raise _row_error(file, str(error)) from error
    if not len(table):
        raise InputError(f"{file} has no rows after its header; write a row for each step")
    return table


def _row_error(file: Path, error: str) -> InputError:
    """Convert an error such as `CSV parse error: Row #3: Expected 5 columns, got 4: a,1,`."""
    row = re.search(r"Row #(\d+): ", error)
    location, reason = (f":{_find_line(file, int(row[1]) - 2)}", error[row.end() :]) if row else ("", error)
    return InputError(f"{file}{location}: {' '.join(reason.split())[:200]}")


def _encode_texts(file: Path, column: pa.ChunkedArray, name: str) -> tuple[np.ndarray, list[str]]:
    """Return the number of each row's text, in order of first appearance, and the texts."""
    coded = pc.dictionary_encode(column.combine_chunks())
    names = coded.dictionary.to_pylist()
    codes = np.asarray(coded.indices)
    if "" in names:
        line = _find_line(file, int(np.argmax(codes == names.index(""))))
        raise InputError(f"{file}:{line}: {name} is empty")
    return codes, names


def _order_rows(file: Path, codes: np.ndarray, column: pa.ChunkedArray) -> np.ndarray:
    """Return the rows in order of sequence and time."""
    times = _parse_times(file, column.combine_chunks())
    order = np.lexsort((times, codes))
    same = (np.diff(codes[order]) == 0) & (np.diff(times[order]) == 0)
    for position in np.flatnonzero(same)[:1]:
        first, second = sorted((order[position], order[position + 1]))
        time, lines = column[int(second)].as_py(), (_find_line(file, first), _find_line(file, second))
        raise InputError(
            f"{file}:{lines[1]}: the time {time} is that of line {lines[0]} already, in the same series"
        )
    return order


def _parse_times(file: Path, column: pa.Array) -> np.ndarray:
    """Parse times. All digits of integers count: nanoseconds since 1970 differ in the last ones."""
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
    """Return the text that all rows of a sequence have, for each sequence."""
    codes_of_texts, texts = _encode_texts(file, column, name)
    same = codes_of_texts == codes_of_texts[first][codes]
    for row in np.flatnonzero(~same)[:1]:
        own, before = texts[codes_of_texts[row]], texts[codes_of_texts[first[codes[row]]]]
        raise InputError(
            f"{file}:{_find_line(file, row)}: {name} must be the same in all rows of a series: "
            f"{quote(own)}, not {quote(before)}"
        )
    return [texts[i] for i in codes_of_texts[first].tolist()]


def _make_locator(file: Path, rows: np.ndarray) -> Callable[[int], str]:
    return lambda i: f"{file}:{_find_line(file, rows[i])}"


def _find_line(file: Path, row: int) -> int:
    """Return the line on which a row begins, from 1. Reads the file again, only for an error message."""
    # `row` counts from 0, without the header. Rows can span lines, and empty lines are no rows.
    lines = (line for line, _ in iterate_rows(read_text(file), file))
    return next(islice(lines, int(row) + 1, None))

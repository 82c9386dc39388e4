"""Read tables in CSV files with the line of each row."""

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from automl.base.errors import InputError

Row = dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Table:
    """The content of a CSV file.

    Attributes:
        columns: names in the order of the header.
        rows: each row with its first line in the file, from 1.
    """

    columns: list[str]
    rows: list[tuple[int, Row]]


def read_table(path: Path) -> Table:
    """Read a CSV file in UTF-8. Rows of empty fields are dropped. Missing fields of a short row are empty.

    Raises:
        InputError: The file does not exist, is not UTF-8, or is not a CSV file.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"there is no file {path}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read as a CSV ({error.strerror})") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}, line {line}: a CSV must be in UTF-8; save it as UTF-8") from error
    rows = ((line, fields) for line, fields in iterate_rows(text, path) if any(map(str.strip, fields)))
    _, columns = next(rows, (1, []))
    empty = dict.fromkeys(columns, "")
    return Table(
        columns=columns,
        rows=[(line, empty | dict(zip(columns, fields, strict=False))) for line, fields in rows],
    )


def iterate_rows(text: str, path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line number and the fields of each row of CSV text. Empty lines are skipped.

    Quoted fields may span lines. `path` is used in messages.

    Raises:
        InputError: The text is not CSV.
    """
    reader, line = csv.reader(io.StringIO(text, newline="")), 1
    try:
        for fields in reader:
            if fields:
                yield line, fields
            line = reader.line_num + 1
    except csv.Error as error:
        raise InputError(f"{path}, line {line}: not a row of a CSV ({error})") from error

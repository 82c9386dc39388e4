"""Tables in CSV files: every row with the line on which it begins."""

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from attention.errors import InputError

Row = dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Table:
    """columns: names in the order of the header. rows: each with its first line in the file, from 1."""

    columns: list[str]
    rows: list[tuple[int, Row]]


def read_table(path: Path) -> Table:
    """Read a CSV file in UTF-8, without rows of empty fields. A field that a short row lacks is empty.

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
    rows = ((line, fields) for line, fields in numbered_rows(text, path) if any(map(str.strip, fields)))
    _, columns = next(rows, (1, []))
    empty = dict.fromkeys(columns, "")
    return Table(
        columns=columns,
        rows=[(line, empty | dict(zip(columns, fields, strict=False))) for line, fields in rows],
    )


def numbered_rows(text: str, path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line of each row of CSV text, and its fields; empty lines are no rows.

    Quoted fields may span lines, so the line of a row is not its number. path: for messages.

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

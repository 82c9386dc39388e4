"""Read tables in CSV files with the line of each row, among them the `labels.csv` of a folder.

A folder assigns groups of similar inputs, such as the images of a patient or the frames of a scene, in
`labels.csv`, with the columns `file` and `group`, in every layout. Data in a table have a column `group`. An
input without a group stands alone. A group is in one split (`automl.data.splits`).
"""

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from automl.base.errors import InputError
from automl.base.text import read_text
from automl.data.files import find_on_disk, is_file, normalise_nfc

Row = dict[str, str]

LABELS = "labels.csv"
SEPARATOR = ";"  # of the labels of an image
COLUMNS = {
    "file": ("file", "filename", "file_name", "image", "path"),
    "label": ("label", "class", "category", "labels", "tags"),
    "target": ("target", "value"),
    "split": ("split", "set"),
    "group": ("group",),
}


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

    Raises InputError if the file does not exist, is not UTF-8, or is not a CSV file.
    """
    try:
        text = read_text(path)
    except FileNotFoundError:
        raise InputError(f"there is no file {path}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read as a CSV ({error.strerror})") from error
    rows = ((line, fields) for line, fields in iterate_rows(text, path) if any(map(str.strip, fields)))
    _, columns = next(rows, (1, []))
    empty = dict.fromkeys(columns, "")
    return Table(
        columns=columns,
        rows=[(line, empty | dict(zip(columns, fields, strict=False))) for line, fields in rows],
    )


def iterate_rows(text: str, path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line number and the fields of each row of CSV text. Empty lines are skipped.

    Quoted fields may span lines. Raises InputError, which names `path`, if the text is not CSV.
    """
    reader, line = csv.reader(io.StringIO(text, newline="")), 1
    try:
        for fields in reader:
            if fields:
                yield line, fields
            line = reader.line_num + 1
    except csv.Error as error:
        raise InputError(f"{path}, line {line}: not a row of a CSV ({error})") from error


def read_labels(root: Path) -> Table | None:
    """Read `labels.csv` in `root`; None if there is none. Known columns are renamed to those of COLUMNS."""
    table = root / LABELS
    if not table.is_file():
        return None
    content = read_table(table)
    originals = {name.strip().lower(): name for name in content.columns}
    known = {column: next((n for n in names if n in originals), None) for column, names in COLUMNS.items()}
    columns = {name: name.strip() for name in originals.values()}
    columns |= {originals[name]: column for column, name in known.items() if name is not None}
    rows = [(line, {column: row[name] for name, column in columns.items()}) for line, row in content.rows]
    return Table(columns=[*columns.values()], rows=rows)


def resolve_file(root: Path, name: str, line: int) -> Path:
    """Return the file in `root` that a line of its table names. Raises InputError if it does not exist."""
    table, file = root / LABELS, find_on_disk(root, name)
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise InputError(f"{table}, line {line}: {name} must be in the folder of the table")
    if not is_file(file):
        raise InputError(f"{table}, line {line}: there is no file {file}")
    return file


def read_groups(root: Path, table: Table | None) -> dict[Path, str]:
    """Return the group of each file in `root` that has one. Raises InputError for a file in two groups."""
    groups: dict[Path, str] = {}
    for line, row in table.rows if table and {"file", "group"} <= {*table.columns} else ():
        file, group = resolve_file(root, row["file"], line), normalise_nfc(row["group"].strip())
        if group and groups.setdefault(file, group) != group:
            raise InputError(
                f"{root / LABELS}, line {line}: {row['file']} has the groups {groups[file]!r} and {group!r}; "
                f"keep one"
            )
    return groups

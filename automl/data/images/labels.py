"""Images whose labels are in a table: `labels.csv` in their folder, with a row for each image."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from attention.errors import InputError
from automl.data.files import composed, is_file, on_disk
from automl.data.table import read_table

LABELS = "labels.csv"
COLUMNS = {
    "file": ("file", "filename", "file_name", "image", "path"),
    "label": ("label", "class", "category"),
    "split": ("split", "set"),
}


def read_labels(root: Path, splits: Mapping[str, Sequence[str]]) -> dict[str, dict[str, list[Path]]]:
    """The images of each split by class, of the table in `root`; all are of "train" where no column tells.

    splits: the names that a split may have. A file's path is relative to `root`.

    Raises InputError, with the line, for a table without these columns, a file that is not there, a label
    that is empty, and an unknown split.
    """
    table = root / LABELS
    content = read_table(table)
    columns = {name.strip().lower(): name for name in content.columns}
    known = {what: next((columns[n] for n in names if n in columns), None) for what, names in COLUMNS.items()}
    if known["file"] is None or known["label"] is None:
        raise InputError(
            f"{table} needs a column {' or '.join(COLUMNS['file'])} and one "
            f"{' or '.join(COLUMNS['label'])}, and a row for each image; it has "
            f"{', '.join(columns) or 'nothing'}"
        )
    found: dict[str, dict[str, list[Path]]] = {}
    for line, row in content.rows:
        name, label = Path(row[known["file"]]), composed(row[known["label"]].strip())
        image = on_disk(root, name)
        if name.is_absolute() or ".." in name.parts:
            raise InputError(f"{table}, line {line}: {name} does not lie in the folder of the table")
        if not is_file(image):
            raise InputError(f"{table}, line {line}: there is no file {image}")
        if not label:
            raise InputError(f"{table}, line {line}: {image.name} has no label")
        split = "train" if known["split"] is None else _split(row[known["split"]], splits, table, line)
        found.setdefault(split, {}).setdefault(label, []).append(image)
    return found


def _split(text: str, splits: Mapping[str, Sequence[str]], table: Path, line: int) -> str:
    for split, names in splits.items():
        if text.strip().lower() in names:
            return split
    known = ", ".join(name for names in splits.values() for name in names)
    raise InputError(f"{table}, line {line}: a split is one of {known}; got {text!r}")

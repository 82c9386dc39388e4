"""Read images whose labels are in a table: `labels.csv` in their folder, with a row for each image."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from automl.base.errors import InputError
from automl.data.csv_table import COLUMNS, LABELS, Table, resolve_file
from automl.data.files import normalise_nfc


def list_labelled(
    root: Path, content: Table, splits: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, list[Path]]]:
    """Return the images of each split by class. All are in "train" if the table has no column of splits.

    Args:
        root: the folder.
        content: the content of `labels.csv`.
        splits: the accepted names of each split.

    Raises:
        InputError: A column or file is missing, a label is empty, or a split is unknown. The message names
            the line.
    """
    table = root / LABELS
    if not {"file", "label"} <= {*content.columns}:
        raise InputError(
            f"{table} needs a column {' or '.join(COLUMNS['file'])} and one "
            f"{' or '.join(COLUMNS['label'])}, and a row for each image; it has "
            f"{', '.join(content.columns) or 'nothing'}"
        )
    images: dict[str, dict[str, list[Path]]] = {}
    for line, row in content.rows:
        image, label = resolve_file(root, row["file"], line), normalise_nfc(row["label"].strip())
        if not label:
            raise InputError(f"{table}, line {line}: {image.name} has no label")
        split = _parse_split(row["split"], splits, table, line) if "split" in row else "train"
        images.setdefault(split, {}).setdefault(label, []).append(image)
    return images


def _parse_split(text: str, splits: Mapping[str, Sequence[str]], table: Path, line: int) -> str:
    for split, names in splits.items():
        if text.strip().lower() in names:
            return split
    known = ", ".join(name for names in splits.values() for name in names)
    raise InputError(f"{table}, line {line}: the split must be one of {known}; got {text!r}")

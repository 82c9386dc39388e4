"""Tables of labels: `labels.csv` with a row for each image, and that of Tiny ImageNet's validation images.

    train/n01443537/images/n01443537_0.JPEG
    val/images/val_0.JPEG
    val/val_annotations.txt     file, class and box, separated by tabs
    test/images/test_0.JPEG     without labels

Source: http://cs231n.stanford.edu/tiny-imagenet-200.zip
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from automl.base.errors import InputError
from automl.data.csv_table import COLUMNS, LABELS, Table, resolve_file
from automl.data.files import find_on_disk, is_file, normalise_nfc


def list_labelled(
    root: Path, content: Table, splits: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, list[Path]]]:
    """Return the images of each split by class. All are in "train" if the table has no column of splits.

    `splits` has the accepted names of each.

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


ANNOTATIONS = "val_annotations.txt"
IMAGES = "images"


def has_annotations(folder: Path) -> bool:
    """Return whether `folder` has a table with the labels of its images."""
    return is_file(folder / ANNOTATIONS) and (folder / IMAGES).is_dir()


def read_validation_labels(folder: Path) -> dict[str, list[Path]]:
    """Return the images of each class, sorted, by the table in `folder`.

    Raises InputError with the line for a row without a class or a missing file.
    """
    table = folder / ANNOTATIONS
    try:
        lines = table.read_bytes().decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"{table} must be in UTF-8; save it as UTF-8") from error
    classes: dict[str, list[Path]] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        name, *rest = line.split("\t")
        if not rest or not rest[0].strip():
            raise InputError(f"{table}, line {number}: {name[:60]!r} has no class; write FILE, a tab, CLASS")
        if not name or Path(name).name != name:
            raise InputError(f"{table}, line {number}: {name[:60]!r} must be a file in {folder / IMAGES}")
        image = find_on_disk(folder / IMAGES, name)
        if not is_file(image):
            raise InputError(f"{table}, line {number}: there is no file {image}")
        classes.setdefault(normalise_nfc(rest[0].strip()), []).append(image)
    return {name: sorted(images) for name, images in classes.items()}


def is_unlabelled(folder: Path) -> bool:
    """Return whether a test split has one folder `images/` instead of folders of classes."""
    return [entry.name for entry in folder.iterdir() if entry.is_dir()] == [IMAGES]

"""Images in parquet files, as datasets on the hub of Hugging Face have them.

A column has the bytes of each image and the name of its file, and another one its class, labels or number.
The schema's metadata has the names of classes. Splits are those of the files' names, or of their folders. The
images are unpacked once, into a folder with `labels.csv`.

Source: https://huggingface.co/docs/hub/datasets-image
"""

import csv
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from automl.base.errors import InputError
from automl.base.terminal import progress
from automl.data.csv_table import COLUMNS, LABELS, SEPARATOR
from automl.data.files import hash_all, hash_contents
from automl.data.pictures import SUFFIXES, get_suffix
from automl.data.splits import SPLIT_OF
from automl.storage.cache_folder import cache_root, once

PATTERNS = ("*.parquet", "data/*.parquet", "default/*/*.parquet")  # such as data/train-00000-of-00001.parquet
ROWS = 256  # that are read at once
UNLABELLED = -1  # the class of an image of a hidden test split


class _Columns(NamedTuple):
    """The columns of images and targets, the latter's name in `labels.csv`, and the names of classes."""

    image: str
    target: str
    title: str
    names: Sequence[str]


def unpack_images(root: Path) -> Path:
    """Return the folder in the cache with the images of the parquet files in a folder, or else the folder.

    Raises InputError if a file is damaged, or the images have no target.
    """
    files = sorted(file for pattern in PATTERNS for file in root.glob(pattern))
    try:
        if not files or (columns := _find_columns(files[0])) is None:
            return root
        splits = {file: _split_of(file.relative_to(root)) for file in files}
        into = cache_root() / "extracted" / hash_all([*splits.values(), *hash_contents(files)]).hex()[:32]
        return once(into, lambda folder: _unpack(splits, columns, folder))
    except (pa.ArrowException, KeyError) as error:
        raise InputError(
            f"a parquet file in {root} is damaged, or differs from the others ({error})"
        ) from error


def _find_columns(file: Path) -> _Columns | None:
    """Return the columns of a file, or None if it has no images."""
    schema = pq.read_schema(file)
    structs = [field for field in schema if pa.types.is_struct(field.type)]
    image = next((field.name for field in structs if field.type.get_field_index("bytes") >= 0), None)
    if image is None:
        return None
    about = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    features = about.get("info", {}).get("features", {})
    names = {name: _class_names(features.get(name)) for name in schema.names if name != image}
    titles = {known: title for title in ("target", "label") for known in COLUMNS[title]}
    for name in sorted(names, key=lambda name: name not in titles):
        if name in titles or names[name]:
            return _Columns(image, name, titles.get(name, "label"), names[name])
    raise InputError(
        f"{file} has images and no target; call the column of classes or of lists of them label, and that of "
        f"numbers target. It has {', '.join(names) or 'no other column'}"
    )


def _class_names(feature: Any) -> Sequence[str]:
    """Return the names of the classes of a feature or of the members of its lists, if it has any."""
    if isinstance(feature, list):
        feature = feature[0]
    if not isinstance(feature, dict):
        return ()
    names: Sequence[str] = feature.get("names") or _class_names(feature.get("feature"))
    if bad := [name for name in names if SEPARATOR in name]:
        raise InputError(f"names of classes must not contain {SEPARATOR!r}; got {bad[0]!r}")
    return names


def _split_of(file: Path) -> str:
    words = (re.split(r"[-_.]", part.lower())[0] for part in reversed(file.parts))
    return next((word for word in words if word in SPLIT_OF), "train")


def _unpack(splits: Mapping[Path, str], columns: _Columns, folder: Path) -> None:
    """Write the images and `labels.csv`. Images without a target are left out."""
    (folder / "images").mkdir(parents=True)
    lines = [["file", columns.title, "split"]]
    with progress("unpacking images", sum(pq.read_metadata(file).num_rows for file in splits)) as advance:
        for file, split in splits.items():
            for batch in pq.ParquetFile(file).iter_batches(ROWS, columns=[columns.image, columns.target]):
                for row in batch.to_pylist():
                    image, target = row[columns.image], _show(row[columns.target], columns.names)
                    if image and image["bytes"] and target is not None:
                        suffix = get_suffix(image.get("path") or "")
                        name = f"images/{len(lines):07}{suffix if suffix in SUFFIXES else ''}"
                        (folder / name).write_bytes(image["bytes"])
                        lines.append([name, target, split])
                advance(len(batch))
    with (folder / LABELS).open("w", encoding="utf-8", newline="") as table:
        csv.writer(table).writerows(lines)


def _show(target: Any, names: Sequence[str]) -> str | None:
    """Return a target as `labels.csv` has it, or None without one."""
    if isinstance(target, list):
        return SEPARATOR.join(_show(each, names) or "" for each in target)
    if target is None or (names and target == UNLABELLED):
        return None
    return names[target] if names and isinstance(target, int) else str(target)

"""Folders that are nearly in the layout of a task, and would otherwise be read as images of classes."""

import re
from pathlib import Path

from automl.base.errors import InputError
from automl.base.registry import contributions
from automl.data.archive import enter_single_folder, extract_if_archive
from automl.data.csv_table import read_labels
from automl.data.files import is_clutter, walk

SPLIT = re.compile(r"(train|val|test)\w*", re.I)
IMAGES = re.compile(r"(jpeg)?(image|img|photo|picture)s?", re.I)
MASKS = re.compile(
    r"((seg|segmentation)_?)?(mask|label|annotation|annot)s?|ground_?truth|gt|segmentation(s|class)?", re.I
)


def check_layout(path: str) -> None:
    """Raise InputError if `path` is nearly data of a task: of pixels, objects, stereo pairs or sequences."""
    root = extract_if_archive(path)
    if not root.is_dir():
        return
    root = enter_single_folder(root)
    table = read_labels(root)
    if table is not None and "label" in table.columns:  # the classes of images
        return
    for folder in (root, *(below for name, below in list_folders(root).items() if SPLIT.fullmatch(name))):
        for find_reasons in contributions("nearly"):
            for reason in find_reasons(folder):
                raise InputError(
                    f"{folder} {reason}. If its folders are classes of images, add --space folder"
                )


def list_folders(root: Path) -> dict[str, Path]:
    """Return the folders in a folder by name."""
    return {path.name: path for path in sorted(root.iterdir()) if path.is_dir() and not is_clutter(path.name)}


def list_files(folder: Path) -> list[Path]:
    """Return all files in a folder and below it."""
    return [path / name for path, _, names in walk(folder) for name in names]


def find_labels_of_images(folder: Path) -> tuple[str, str, list[Path]] | None:
    """Return the names of a folder of images and of one with something for each of them, and its files."""
    folders = list_folders(folder)
    images = [name for name in folders if IMAGES.fullmatch(name)]
    for name in filter(MASKS.fullmatch, folders):
        if images and (files := list_files(folders[name])):
            return images[0], name, files
    return None

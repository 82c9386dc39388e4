"""Folders that are nearly in the layout of a task, and would otherwise be read as images of classes."""

import re
from collections.abc import Iterator
from pathlib import Path

from automl.base.errors import InputError
from automl.data.archive import enter_single_folder, extract_if_archive
from automl.data.csv_table import read_labels
from automl.data.files import is_clutter, walk
from automl.data.images.image_formats import is_image

SPLIT = re.compile(r"(train|val|test)\w*", re.I)
IMAGES = re.compile(r"(jpeg)?(image|img|photo|picture)s?", re.I)
MASKS = re.compile(
    r"((seg|segmentation)_?)?(mask|label|annotation|annot)s?|ground_?truth|gt|segmentation(s|class)?", re.I
)
VIEWS = (("left", "right"), ("image_2", "image_3"), ("image_0", "image_1"), ("colored_0", "colored_1"))
SEQUENCES = (".csv", ".tsv", ".npz", ".npy", ".ts", ".arff", ".parquet")
COCO_KEYS = (b'"images"', b'"annotations"', b'"categories"')
HEAD = 1 << 16  # bytes of an annotation file in which one of its keys is


def check_layout(path: str) -> None:
    """Raise InputError if `path` is nearly data of pixels, objects, stereo pairs or sequences."""
    root = extract_if_archive(path)
    if not root.is_dir():
        return
    root = enter_single_folder(root)
    table = read_labels(root)
    if table is not None and "label" in table.columns:  # the classes of images
        return
    for folder in (root, *(below for name, below in _folders(root).items() if SPLIT.fullmatch(name))):
        for reason in _resemblances(folder):
            raise InputError(f"{folder} {reason}. If its folders are classes of images, add --space folder")


def _resemblances(folder: Path) -> Iterator[str]:
    """Yield what a folder looks like, what is wrong with it, and what to do."""
    folders = _folders(folder)
    images = [below for name, below in folders.items() if IMAGES.fullmatch(name)]
    labels = [below for name, below in folders.items() if MASKS.fullmatch(name)]
    if files := [file for below in labels if images for file in _list_files(below)]:
        if any(map(is_image, files)):
            yield (
                f"looks like images and their masks, in {images[0].name}/ and {labels[0].name}/. They are "
                f"read from images/ and masks/ in the folder of --data, with splits as images/train/ and "
                f"masks/train/, and each mask is a PNG file of the same name. Rename or convert them"
            )
        if any(file.suffix in (".txt", ".xml") for file in files):
            yield _as_coco(f"the {files[0].suffix} files of {labels[0].name}/")
    annotations = sorted((*folder.glob("*.json"), *folder.glob("*nnotations/*.json")))
    if file := next(filter(_is_coco, annotations), None):
        yield _as_coco(str(file.relative_to(folder)))
    for left, right in VIEWS:
        others = [name for name in folders if name not in (left, right) and "disp" not in name]
        if left in folders and right in folders and not others:
            views = [{file.stem for file in _list_files(folders[name])} for name in (left, right)]
            if views[0] and views[0] == views[1]:
                yield (
                    f"looks like stereo pairs, {left}/ and {right}/ with images of the same names, whose "
                    f"disparities are not found. Give a CSV with the columns left, right and disparity"
                )
    kinds = [file.suffix.lower() in SEQUENCES for file in folder.iterdir() if not is_clutter(file.name)]
    if not folders and 2 * sum(kinds) > len(kinds):
        yield (
            "looks like sequences, which are one CSV file with a row for each step, one NPZ file, or the "
            "name of .ts files. Join the files, and give the file"
        )


def _as_coco(what: str) -> str:
    return (
        f"looks like images with objects, by {what}. Objects are read in COCO's layout: "
        f"annotations/instances_train.json with the images in train/. Convert or rename them"
    )


def _is_coco(file: Path) -> bool:
    if not file.is_file():
        return False
    with open(file, "rb") as opened:
        head = opened.read(HEAD)
    return any(key in head for key in COCO_KEYS)


def _folders(root: Path) -> dict[str, Path]:
    return {path.name: path for path in sorted(root.iterdir()) if path.is_dir() and not is_clutter(path.name)}


def _list_files(folder: Path) -> list[Path]:
    return [path / name for path, _, names in walk(folder) for name in names]

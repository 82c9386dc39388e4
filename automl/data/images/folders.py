"""Images in folders: one folder a class, beneath `train/` and `val/` or `test/` or without these; or a table
of their labels, `labels.csv`.

`val/` is the test split, as in ImageNet's archives, unless there is a `test/` too. Splits have other usual
names: see SPLITS. A folder with such a name that has images in it, beside folders of other names, is a class.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from attention.errors import InputError
from automl.data.digest import contents
from automl.data.images.decode import SUFFIXES
from automl.data.images.labels import LABELS, read_labels
from automl.data.items import Item, Items
from automl.data.splits import as_keys, carve

TEST_SHARE = 0.2  # of a folder that has no test split

SPLITS = {
    "train": ("train", "training"),
    "validation": ("val", "valid", "validation"),
    "test": ("test", "testing"),
}
PLUGIN = (".heic", ".heif")  # where Pillow's plug-in for them is not installed
LAYOUT = "one folder of images per class, or train/ and val/ or test/ that each hold one folder per class"


def read_folder(root: Path, readable: Mapping[str, str], cache: Path) -> Items:
    """Lists the dataset in the folder `root`; `readable` has class names for the names of folders.

    The images' hashes are remembered in `cache`.

    Raises InputError when there are no images, one class only, train/ alone, classes in val/ or test/ that
    train/ lacks, or files that cannot be read.
    """
    parts, found = _listed(root)
    folders = sorted(found["train"])
    for split, classes in found.items():
        _check(parts[split], split, classes, folders)
    splits = {split: _items(root, classes, folders, cache) for split, classes in found.items()}
    carved = "test" not in splits
    if carved:
        splits = with_test(splits["train"])
    names = tuple(readable.get(name, _text(name)) for name in folders)
    return Items(classes=names, splits=splits, carved=carved)


def _listed(root: Path) -> tuple[dict[str, Path], dict[str, dict[str, list[Path]]]]:
    """Where each split is told of, and its images by class: by a table of labels, or else by folders."""
    table = root / LABELS
    if not table.is_file():
        parts = _parts(root)
        return parts, {split: _by_class(folder) for split, folder in parts.items()}
    found = read_labels(root, SPLITS)
    if "train" not in found:
        raise InputError(f"{table} names no images to train on; leave its column of splits out, or add some")
    if "test" not in found and "validation" in found:  # as of folders
        found["test"] = found.pop("validation")
    return dict.fromkeys(found, table), found


def with_test(everything: Sequence[Item]) -> dict[str, list[Item]]:
    """Images without a test split, less those that become one."""
    labels = np.array([item.label for item in everything])
    keys = as_keys(item.content for item in everything)
    held, kept = carve(labels, keys, TEST_SHARE, "test")
    return {"train": [everything[i] for i in kept], "test": [everything[i] for i in held]}


def _parts(root: Path) -> dict[str, Path]:
    """The folders of the splits that there are, by the splits' own names."""
    folders = {entry.name.lower(): Path(entry.path) for entry in os.scandir(root) if entry.is_dir()}
    named = [folders[name] for names in SPLITS.values() for name in names if name in folders]
    if not named:
        return {"train": root}
    others = sorted(folder.name for folder in folders.values() if folder not in named)
    others = [name for name in others if _visible(name) and _images(root / name)]
    if others and all(map(_is_class, named)):
        return {"train": root}
    present: dict[str, Path] = {}
    for split, names in SPLITS.items():
        found = [folders[name] for name in names if name in folders]
        if len(found) > 1:
            both = " and ".join(f"{folder.name}/" for folder in found)
            raise InputError(f"{root} has {both}, which both name the {split} split; keep one")
        if found:
            present[split] = found[0]
    if "train" not in present or len(present) == 1:
        has, lacks = ("val/ or test/", "train/")
        if "train" in present:
            has, lacks = (f"{present['train'].name}/", "val/ or test/")
        beside = f", and beside it {', '.join(others[:20])}" if others else ""
        raise InputError(f"{root} has {has} but no {lacks}{beside}; a dataset is {LAYOUT}")
    if len(present) == 3:
        return present
    return {"train": present["train"], "test": present.get("test") or present["validation"]}


def _is_class(folder: Path) -> bool:
    """Return whether images lie in `folder` itself; a split has folders of classes."""
    with os.scandir(folder) as entries:
        images = any(_visible(entry.name) and _suffix(entry.name) in SUFFIXES for entry in entries)
    return images and not _by_class(folder)


def _by_class(folder: Path) -> dict[str, list[Path]]:
    """The images beneath each folder in `folder`, sorted, leaving out folders that have none."""
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and _visible(entry.name))
    return {name: images for name in names if (images := _images(folder / name))}


def _images(folder: Path) -> list[Path]:
    images = []
    for place, folders, files in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if _visible(name)]
        images += [Path(place, name) for name in files if _visible(name) and _suffix(name) in SUFFIXES]
    return sorted(images)


def _check(folder: Path, split: str, classes: Mapping[str, object], known: list[str]) -> None:
    if not classes:
        unread = next((file for file in folder.rglob("*") if _suffix(file.name) in PLUGIN), None)
        hint = f". To read files such as {unread.name}: pip install pillow-heif" if unread else ""
        raise InputError(f"{folder} has no folders with images in them; expected {LAYOUT}{hint}")
    if split == "train" and len(classes) == 1:
        raise InputError(f"{folder} has one class only, {known[0]!r}; a dataset needs two, as {LAYOUT}")
    if extra := sorted(set(classes) - set(known)):
        raise InputError(
            f"classes in {folder} must be among those to train on; {', '.join(map(repr, extra[:5]))} "
            f"({len(extra)} in all) are not; choose from {', '.join(known[:20])}"
        )


def _items(root: Path, classes: Mapping[str, list[Path]], folders: list[str], cache: Path) -> list[Item]:
    found = [(label, image) for label, name in enumerate(folders) for image in classes.get(name, [])]
    hashes = contents([image for _, image in found], cache)
    return [
        Item(_text(image.relative_to(root).as_posix()), image, label, content)
        for (label, image), content in zip(found, hashes, strict=True)
    ]


def _visible(name: str) -> bool:
    return not name.startswith((".", "__MACOSX"))


def _suffix(name: str) -> str:
    return os.path.splitext(name)[1].lower()


def _text(name: str) -> str:
    """A file name can hold bytes that no text may hold."""
    return os.fsencode(name).decode("utf-8", "replace")

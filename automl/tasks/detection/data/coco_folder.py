"""A folder in COCO's layout, or of a tool that exports to it: its annotation files, splits and images.

COCO          annotations/instances_train2017.json    train2017/*.jpg
              annotations/instances_val2017.json      val2017/*.jpg
Roboflow      train/_annotations.coco.json            train/*.jpg
              valid/_annotations.coco.json            valid/*.jpg
Label Studio  result.json                             images/*.jpg

The images of a file `instances_NAME.json` are in the folder NAME, in images/NAME, in a folder named after the
split (train, val or test), in images, or beside `annotations`.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from automl.base.errors import InputError
from automl.base.text import open_text
from automl.base.units import pluralize
from automl.data.archive import extract_if_archive
from automl.data.csv_table import read_groups, read_labels
from automl.data.download import read_datasets
from automl.data.files import (
    find_labels_of_images,
    find_on_disk,
    hash_contents,
    is_file,
    list_folders,
    name_to_text,
)
from automl.data.records import Listing
from automl.data.remote import existing_copy
from automl.data.splits import SPLIT_OF
from automl.data.tally import Tally, join_examples
from automl.tasks.detection.data.annotations import Annotations, check_names, read_annotations, read_content
from automl.tasks.detection.data.masks import Photo

SPLIT_PREFIXES = {"train": "train", "val": "validation", "test": "test"}  # by a file's first letters
ROBOFLOW, LABEL_STUDIO = "_annotations.coco.json", "result.json"
# Splits by the names of Roboflow's folders.
FOLDERS = {**SPLIT_OF, ".": "train"}
LAYOUTS = f"annotations/instances_train*.json, train/{ROBOFLOW} or {LABEL_STUDIO} beside images/"
COPY = "copies of another image in their annotation file"
SAMPLED = 20  # images that are looked for to find the folder of a file's images

KEYS = ('"images"', '"annotations"', '"categories"')
HEAD = 1 << 16  # characters of an annotation file in which one of its keys is


@dataclass(frozen=True)
class AnnotationFile:
    """An annotation file, its split if its name tells, and where its images may be, the likeliest first."""

    path: Path
    split: str | None
    folders: tuple[Path, ...]


@dataclass(frozen=True, kw_only=True)
class DetectionListing(Listing[Photo]):
    """A dataset before anything is decoded.

    Attributes:
        categories: names by COCO's category id.
        has_masks: whether every object has a mask.
        left_out: why objects were left out.
    """

    categories: Mapping[int, str]
    has_masks: bool
    left_out: Sequence[str] = ()


def is_coco(path: str | Path) -> bool:
    """Return whether a folder or archive has annotations in one of the layouts."""
    return bool(list_annotation_files(_resolve_root(path)))


def list_annotation_files(root: Path) -> list[AnnotationFile]:
    """Return the annotation files of the first layout that matches `root`; an empty list if none does."""
    files = {root / name / ROBOFLOW: split for name, split in FOLDERS.items()}
    roboflow = [AnnotationFile(file, split, (file.parent,)) for file, split in files.items() if is_file(file)]
    return list(_list_coco(root)) or roboflow or list(_list_label_studio(root))


def _list_coco(root: Path) -> Iterator[AnnotationFile]:
    for file in sorted(root.glob("annotations/instances_*.json")):
        name = file.stem.removeprefix("instances_")
        prefix = next((prefix for prefix in SPLIT_PREFIXES if name.startswith(prefix)), None)
        names = [name] if prefix is None else [name, prefix]
        folders = [folder / base for base in names for folder in (root, root / "images")]
        split = None if prefix is None else SPLIT_PREFIXES[prefix]
        yield AnnotationFile(file, split, (*folders, root / "images", root))


def _list_label_studio(root: Path) -> Iterator[AnnotationFile]:
    file = root / LABEL_STUDIO
    if not is_file(file) or not (root / "images").is_dir():
        return
    try:
        read_content(file)
    except InputError:  # Other programs use this file name, too.
        return
    yield AnnotationFile(file, "train", (root, root / "images"))


def _resolve_root(path: str | Path) -> Path:
    """Return the folder with annotations: this one, or the only one in it or in the archive."""
    path = extract_if_archive(path)
    inside = [*list_folders(path).values()] if path.is_dir() else []
    return inside[0] if len(inside) == 1 and not list_annotation_files(path) else path


def read_coco_folder(path: str | Path) -> DetectionListing:
    """List all splits of the folder or archive `path` with hashes of their images, without decoding them.

    A category that groups others and has no objects in any split is left out. Groups of images come from
    `labels.csv`. Raises InputError if the path is no such folder, the split of a file is unknown, or images
    are missing, and like `read_annotations`.
    """
    root = _resolve_root(existing_copy(path))
    files: dict[str, AnnotationFile] = {}
    for file in list_annotation_files(root):
        if file.split is None:
            raise InputError(
                f"{file.path} must be named instances_train*.json, instances_val*.json or "
                f"instances_test*.json"
            )
        if file.split in files:
            raise InputError(
                f"{files[file.split].path} and {file.path} are both of the split {file.split}; keep one"
            )
        files[file.split] = file
    if "train" not in files:
        raise InputError(f"{root} needs {LAYOUTS}")
    stamps = tuple(_stamp(file.path) for file in files.values())
    contents = dict(zip(files, _read_files(stamps), strict=True))
    first = contents["train"]
    for other in contents.values():
        if other.categories != first.categories:
            odd = sorted(set(other.categories.items()) ^ set(first.categories.items()))[0]
            raise InputError(
                f"{other.file} and {first.file} must list the same categories; they differ in "
                f"{odd[0]} ({odd[1]})"
            )
    unused = frozenset.intersection(*(content.unused_parents for content in contents.values()))
    categories = {number: name for number, name in first.categories.items() if number not in unused}
    check_names(first.file, categories)
    in_groups, tally = read_groups(root, read_labels(root)), Tally()
    splits = {
        split: _list_photos(root, files[split], content, in_groups) for split, content in contents.items()
    }
    for photos in splits.values():
        tally.keep_copies(COPY, ((photo.name, photo.key) for photo in photos))
    return DetectionListing(
        categories=categories,
        splits=splits,
        tally=tally,
        has_masks=all(content.has_masks for content in contents.values()),
        left_out=[why for content in contents.values() for why in content.left_out],
    )


Stamp = tuple[Path, int, int]


def _stamp(file: Path) -> Stamp:
    status = file.stat()
    return file, status.st_size, status.st_mtime_ns


@lru_cache(maxsize=2)  # Each holds hundreds of megabytes, and the trials of a process read one dataset.
def _read_files(stamps: tuple[Stamp, ...]) -> list[Annotations]:
    return [read_annotations(file) for file, *_ in stamps]


def _list_photos(
    root: Path, file: AnnotationFile, annotations: Annotations, groups: Mapping[Path, str]
) -> list[Photo]:
    names = [image.name for image in annotations.images[:SAMPLED]]
    matches = (base for base in file.folders if any(is_file(_find_below(base, name)) for name in names))
    folder = next(matches, file.folders[0])
    images = [_find_below(folder, image.name) for image in annotations.images]
    missing = [i for i, image in enumerate(images) if not is_file(image)]
    if missing:
        entries = join_examples([f"{annotations.images[i].number} ({images[i]})" for i in missing])
        raise InputError(
            f"{annotations.file} names {pluralize(len(images), 'images')}; "
            f"{pluralize(len(missing), 'do not exist')}: {entries}"
        )
    pixels = hash_contents(images)
    return [
        Photo(
            name=name_to_text(path.relative_to(root)),
            image=path,
            width=image.width,
            height=image.height,
            key=content,
            content=hashlib.sha256(content + json.dumps(image.annotations, sort_keys=True).encode()).digest(),
            annotations=image.annotations,
            group=groups.get(path, ""),
        )
        for image, path, content in zip(annotations.images, images, pixels, strict=True)
    ]


def _find_below(folder: Path, name: str) -> Path:
    """Return the file with this name. Windows programs write backslashes as separators."""
    path = find_on_disk(folder, name)
    return path if "\\" not in name or is_file(path) else find_on_disk(folder, name.replace("\\", "/"))


def nearly_coco(folder: Path) -> Iterator[str]:
    """Yield what is wrong with a folder that is nearly in COCO's layout, and what to do."""
    match = find_labels_of_images(folder)
    if match is not None and any(file.suffix in (".txt", ".xml") for file in match[2]):
        yield _convert(f"the {match[2][0].suffix} files of {match[1]}/")
    files = sorted((*folder.glob("*.json"), *folder.glob("*nnotations/*.json")))
    if file := next(filter(_is_annotations, files), None):
        yield _convert(str(file.relative_to(folder)))


def _convert(what: str) -> str:
    return (
        f"looks like images with objects, by {what}. Objects are read in COCO's layout: "
        f"annotations/instances_train.json with the images in train/. Convert or rename them"
    )


def _is_annotations(file: Path) -> bool:
    if not file.is_file():
        return False
    with open_text(file, errors="replace") as opened:
        head = opened.read(HEAD)
    return any(key in head for key in KEYS)


DATASETS = read_datasets(__file__)

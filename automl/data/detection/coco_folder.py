"""A folder of COCO's layout, or of a tool that exports to it: which file is of which split, where images are.

COCO          annotations/instances_train2017.json    train2017/*.jpg
              annotations/instances_val2017.json      val2017/*.jpg
Roboflow      train/_annotations.coco.json            train/*.jpg
              valid/_annotations.coco.json            valid/*.jpg
Label Studio  result.json                             images/*.jpg

The images of a file `instances_NAME.json` are in the folder NAME, in images/NAME, in the one that is called
as the split (train, val or test), in images, or beside `annotations`.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from attention.errors import InputError
from automl.data.archive import extract_cached, is_archive
from automl.data.detection.annotations import Annotations, check_names, read_annotations, read_content
from automl.data.detection.objects import Photo
from automl.data.digest import hash_contents
from automl.data.files import find_on_disk, is_file, name_to_text, normalise_nfc
from automl.data.groups import read_groups, read_labels
from automl.data.items import Listing
from automl.data.tally import Tally
from automl.data.walk import is_clutter
from automl.storage.cache_folder import cache_root

SPLITS = {"train": "train", "val": "validation", "test": "test"}  # by what a file's name begins with
ROBOFLOW, LABEL_STUDIO = "_annotations.coco.json", "result.json"
FOLDERS = {  # of Roboflow
    "train": "train",
    "valid": "validation",
    "val": "validation",
    "validation": "validation",
    "test": "test",
    ".": "train",
}
LAYOUTS = f"annotations/instances_train*.json, train/{ROBOFLOW} or {LABEL_STUDIO} beside images/"
COPY = "copies of another image of their file of annotations"
EXAMPLES = 3
SOME = 20  # images by which their folder is found
ABOVE = 4  # folders above an image in which its annotations are looked for


@dataclass(frozen=True)
class AnnotationFile:
    """split: None where the name does not tell. places: where its images may be, the likeliest first."""

    path: Path
    split: str | None
    folders: tuple[Path, ...]


@dataclass(frozen=True, kw_only=True)
class DetectionListing(Listing[Photo]):
    """A dataset before anything is decoded.

    categories: names by COCO's number. has_masks: whether every object has one. left_out: why objects
    are left out.
    """

    categories: Mapping[int, str]
    has_masks: bool
    left_out: Sequence[str] = ()


def is_coco(path: str | Path) -> bool:
    """Return whether a folder or archive has annotations in one of the layouts."""
    return bool(list_annotation_files(_resolve_root(Path(path).expanduser())))


def list_annotation_files(root: Path) -> list[AnnotationFile]:
    """Return the annotation files of the first layout that `root` has; none if it has none."""
    return list(_list_coco(root)) or list(_list_roboflow(root)) or list(_list_label_studio(root))


def _list_coco(root: Path) -> Iterator[AnnotationFile]:
    for file in sorted(root.glob("annotations/instances_*.json")):
        name = file.stem.removeprefix("instances_")
        begin = next((begin for begin in SPLITS if name.startswith(begin)), None)
        names = [name] if begin is None else [name, begin]
        places = [folder / each for each in names for folder in (root, root / "images")]
        split = None if begin is None else SPLITS[begin]
        yield AnnotationFile(file, split, (*places, root / "images", root))


def _list_roboflow(root: Path) -> Iterator[AnnotationFile]:
    for name, split in FOLDERS.items():
        if is_file(file := root / name / ROBOFLOW):
            yield AnnotationFile(file, split, (file.parent,))


def _list_label_studio(root: Path) -> Iterator[AnnotationFile]:
    file = root / LABEL_STUDIO
    if not is_file(file) or not (root / "images").is_dir():
        return
    try:
        read_content(file)
    except InputError:  # others call their results so, too
        return
    yield AnnotationFile(file, "train", (root, root / "images"))


def _resolve_root(path: Path) -> Path:
    """Return the folder with annotations: this one, or the only one in it or in the archive."""
    if path.is_file() and is_archive(path):
        path = extract_cached(path, cache_root())
    inside = [p for p in path.iterdir() if p.is_dir() and not is_clutter(p.name)] if path.is_dir() else []
    return inside[0] if len(inside) == 1 and not list_annotation_files(path) else path


def read_coco_folder(path: str | Path) -> DetectionListing:
    """All splits of the folder or archive `path`, with hashes of their images; decodes none.

    A category that groups the others and has no objects in any split is left out. Groups of images are those
    of `labels.csv`.

    Raises InputError for what is no such folder, for files of which one cannot tell what they are, for images
    that are not there, and for everything that `read_annotations` refuses.
    """
    root = _resolve_root(Path(path).expanduser())
    if not root.exists():
        raise InputError(f"there is no file or folder {path}; pass --data PATH with one that exists")
    files: dict[str, AnnotationFile] = {}
    for file in list_annotation_files(root):
        if file.split is None:
            raise InputError(
                f"{file.path} must be called instances_train*.json, instances_val*.json or _test*"
            )
        if file.split in files:
            raise InputError(
                f"{files[file.split].path} and {file.path} are both of {file.split}; keep one of them"
            )
        files[file.split] = file
    if "train" not in files:
        raise InputError(f"{root} needs {LAYOUTS}")
    stamps = tuple(_stamp(file.path) for file in files.values())
    read = dict(zip(files, _read_files(stamps), strict=True))
    first = read["train"]
    for other in read.values():
        if other.categories != first.categories:
            odd = sorted(set(other.categories.items()) ^ set(first.categories.items()))[0]
            raise InputError(
                f"{other.file} and {first.file} must list the same categories; they differ in "
                f"{odd[0]} ({odd[1]})"
            )
    groups = frozenset.intersection(*(each.unused_parents for each in read.values()))
    categories = {number: name for number, name in first.categories.items() if number not in groups}
    check_names(first.file, categories)
    in_groups, tally = read_groups(root, read_labels(root)), Tally()
    splits = {split: _list_photos(root, files[split], each, in_groups) for split, each in read.items()}
    for photos in splits.values():
        tally.keep_copies(COPY, ((photo.name, photo.key) for photo in photos))
    return DetectionListing(
        categories=categories,
        splits=splits,
        tally=tally,
        has_masks=all(each.has_masks for each in read.values()),
        left_out=[why for each in read.values() for why in each.left_out],
    )


def find_image_id(image: Path) -> int | None:
    """Return the id of an image file by the annotations beside or above it; None if none list it."""
    image = image.absolute()
    likely = [
        (len(place.parts), file.path, normalise_nfc(image.relative_to(place).as_posix()))
        for root in list(image.parents)[:ABOVE]
        for file in list_annotation_files(root)
        for place in file.folders
        if image.is_relative_to(place)
    ]
    for _, file, name in sorted(likely, reverse=True):  # a large file of another split is read last
        if (number := _read_ids(_stamp(file)).get(name)) is not None:
            return number
    return None


Stamp = tuple[Path, int, int]


def _stamp(file: Path) -> Stamp:
    status = file.stat()
    return file, status.st_size, status.st_mtime_ns


@lru_cache(maxsize=4)
def _read_ids(stamp: Stamp) -> dict[str, int]:
    """Return ids by file name; none of a file that is damaged."""
    try:
        images = read_content(stamp[0])["images"]
    except InputError:
        return {}
    named = [(image.get("file_name"), image.get("id")) for image in images]
    return {
        normalise_nfc(name.replace("\\", "/")): number for name, number in named if _is_entry(name, number)
    }  # type: ignore[union-attr, misc]


def _is_entry(name: object, number: object) -> bool:
    return isinstance(name, str) and isinstance(number, int)


@lru_cache(maxsize=2)  # of hundreds of megabytes; all trials of a process read one dataset
def _read_files(stamps: tuple[Stamp, ...]) -> list[Annotations]:
    return [read_annotations(file) for file, *_ in stamps]


def _list_photos(
    root: Path, file: AnnotationFile, read: Annotations, groups: Mapping[Path, str]
) -> list[Photo]:
    some = [image.name for image in read.images[:SOME]]
    found = (place for place in file.folders if any(is_file(_find_below(place, name)) for name in some))
    place = next(found, file.folders[0])
    images = [_find_below(place, image.name) for image in read.images]
    missing = [i for i, image in enumerate(images) if not is_file(image)]
    if missing:
        entries = ", ".join(f"{read.images[i].number} ({images[i]})" for i in missing[:EXAMPLES])
        more = ", ..." if len(missing) > EXAMPLES else ""
        raise InputError(
            f"{read.file} names {len(missing)} of {len(images)} images that are not there: {entries}{more}"
        )
    pixels = hash_contents(images, cache_root())
    return [
        Photo(
            name=name_to_text(path.relative_to(root)),
            image=path,
            width=image.width,
            height=image.height,
            key=content,
            content=_hash_content(content, image.annotations),
            annotations=image.annotations,
            group=groups.get(path, ""),
        )
        for image, path, content in zip(read.images, images, pixels, strict=True)
    ]


def _find_below(place: Path, name: str) -> Path:
    """Return the file of a name, whose separators are backslashes where Windows wrote it."""
    path = find_on_disk(place, name)
    return path if "\\" not in name or is_file(path) else find_on_disk(place, name.replace("\\", "/"))


def _hash_content(pixels: bytes, annotations: object) -> bytes:
    return hashlib.sha256(pixels + json.dumps(annotations, sort_keys=True).encode()).digest()

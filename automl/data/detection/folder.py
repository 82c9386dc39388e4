"""A folder of COCO's layout: which file is of which split, and where its images are.

    annotations/instances_train2017.json    train2017/*.jpg
    annotations/instances_val2017.json      val2017/*.jpg

The images of a file `instances_NAME.json` are in the folder NAME, in images/NAME, in the one that is called
as the split (train, val or test), in images, or beside `annotations`.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from attention.errors import InputError
from automl.data.archive import extracted, is_archive
from automl.data.detection.annotations import Annotations, read_annotations
from automl.data.detection.objects import Photo
from automl.data.digest import contents
from automl.storage.cache import cache_root

SPLITS = {"train": "train", "val": "validation", "test": "test"}  # by what a file's name begins with
EXAMPLES = 3
SOME = 20  # images by which their folder is found


@dataclass(frozen=True, kw_only=True)
class Listing:
    """A dataset before anything is decoded.

    categories: names by COCO's number. splits: those that it has of its own: "train", and perhaps
    "validation" and "test". has_masks: whether every object has one.
    """

    categories: Mapping[int, str]
    splits: Mapping[str, Sequence[Photo]]
    has_masks: bool


def is_coco(path: str | Path) -> bool:
    """Whether there are annotations of COCO's layout."""
    return bool(_files(_root(Path(path).expanduser())))


def _files(root: Path) -> list[Path]:
    return sorted(root.glob("annotations/instances_*.json"))


def _root(path: Path) -> Path:
    """The folder with `annotations`: this one, or the only one in it or in the archive."""
    if path.is_file() and is_archive(path):
        path = extracted(path, cache_root())
    inside = [one for one in path.iterdir() if one.is_dir()] if path.is_dir() else []
    return inside[0] if len(inside) == 1 and not _files(path) else path


def read_folder(path: str | Path) -> Listing:
    """All splits of the folder or archive `path`, with hashes of their images; decodes none.

    Raises InputError for what is no such folder, for files of which one cannot tell what they are, for images
    that are not there, and for everything that `read_annotations` refuses.
    """
    root = _root(Path(path).expanduser())
    if not root.exists():
        raise InputError(f"there is no file or folder {path}; pass --data PATH with one that exists")
    files: dict[str, Path] = {}
    for file in _files(root):
        split = next((s for begin, s in SPLITS.items() if _name(file).startswith(begin)), None)
        if split is None:
            raise InputError(f"{file} must be called instances_train*.json, instances_val*.json or _test*")
        if split in files:
            raise InputError(f"{files[split]} and {file} are both of {split}; keep one of them")
        files[split] = file
    if "train" not in files:
        raise InputError(f"{root} needs annotations/instances_train*.json, as COCO's layout has it")
    stamps = tuple((file, file.stat().st_size, file.stat().st_mtime_ns) for file in files.values())
    read = dict(zip(files, _read(stamps), strict=True))
    first = read["train"]
    for other in read.values():
        if other.categories != first.categories:
            odd = sorted(set(other.categories.items()) ^ set(first.categories.items()))[0]
            raise InputError(
                f"{other.file} and {first.file} must list the same categories; they differ in "
                f"{odd[0]} ({odd[1]})"
            )
    return Listing(
        categories=first.categories,
        splits={split: _photos(root, split, each) for split, each in read.items()},
        has_masks=all(each.has_masks for each in read.values()),
    )


def _name(file: Path) -> str:
    return file.stem.removeprefix("instances_")


@lru_cache(maxsize=2)  # of hundreds of megabytes; all trials of a process read one dataset
def _read(stamps: tuple[tuple[Path, int, int], ...]) -> list[Annotations]:
    return [read_annotations(file) for file, *_ in stamps]


def _photos(root: Path, split: str, read: Annotations) -> list[Photo]:
    name = _name(read.file)
    begin = next(begin for begin, known in SPLITS.items() if known == split)
    places = [root / name, root / "images" / name, root / begin, root / "images" / begin]
    places += [root / "images", root]
    some = [image.name for image in read.images[:SOME]]
    place = next((place for place in places if any((place / name).is_file() for name in some)), places[0])
    images = [place / image.name for image in read.images]
    missing = [i for i, image in enumerate(images) if not image.is_file()]
    if missing:
        entries = ", ".join(f"{read.images[i].number} ({images[i]})" for i in missing[:EXAMPLES])
        more = ", ..." if len(missing) > EXAMPLES else ""
        raise InputError(
            f"{read.file} names {len(missing)} of {len(images)} images that are not there: {entries}{more}"
        )
    pixels = contents(images, cache_root())
    return [
        Photo(
            name=f"{place.name}/{image.name}",
            image=file,
            width=image.width,
            height=image.height,
            key=content,
            content=_content(content, image.annotations),
            annotations=image.annotations,
        )
        for image, file, content in zip(read.images, images, pixels, strict=True)
    ]


def _content(pixels: bytes, annotations: object) -> bytes:
    return hashlib.sha256(pixels + json.dumps(annotations, sort_keys=True).encode()).digest()

"""The table of image sources, the list of images of each, and the published datasets."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from automl.base.errors import InputError, unknown
from automl.data.archive import SUFFIXES, extract_cached, is_archive
from automl.data.digits import read_digits
from automl.data.download import fetch_files, read_datasets
from automl.data.files import hash_contents
from automl.data.records import Item, Listing
from automl.tasks.image_classification.data.folders import read_image_folder

# Names of the classes of each archive by their folders.
READABLE = tomllib.loads(Path(__file__).with_name("readable.toml").read_text())


@dataclass(frozen=True, kw_only=True)
class ImageSource:
    """A dataset that `source` can name.

    Attributes:
        flip: whether an image's mirror image still shows its class.
        archive: the name of the archive to download, without the suffix for the size; None if there is none.
        readable: class names for names of folders.
    """

    flip: bool = True
    archive: str | None = None
    readable: Mapping[str, str] = field(default_factory=dict)


def _list_digits() -> Listing[Item]:
    images, labels = read_digits()
    pixels = (images * (255 / 16)).round().astype(np.uint8)
    everything = [
        Item(f"digit{i}", image, int(label), content)
        for i, (image, label, content) in enumerate(
            zip(pixels, labels, hash_contents(list(pixels)), strict=True)
        )
    ]
    return Listing(classes=tuple(map(str, range(10))), splits={"train": everything})


SOURCES: Mapping[str, ImageSource] = {
    "digits": ImageSource(flip=False),  # A mirrored digit is another digit or none.
    "nette": ImageSource(archive="imagenette2", readable=READABLE["imagenette"]),
    "woof": ImageSource(archive="imagewoof2", readable=READABLE["imagewoof"]),
    "nette1": ImageSource(archive="imagenette", readable=READABLE["imagenette"]),
    "woof1": ImageSource(archive="imagewoof", readable=READABLE["imagewoof"]),
    "folder": ImageSource(),
}


def list_images(source: str, path: str | Path | None, size: int) -> Listing[Item]:
    """List the images of a source with their hashes for training at `size` pixels, without decoding them.

    `path` is a folder (see `folders`) or an archive of one. Without a path, `nette`, `woof`, `nette1` and
    `woof1` are downloaded. Sizes up to 128 use the archive of 160 pixels, sizes up to 224 that of 320 pixels,
    and larger ones the full archive.

    Raises:
        InputError: The source is unknown, the path is missing or not allowed, a download failed, the folder
            or archive is not a dataset, or a file cannot be read.
    """
    if source not in SOURCES:
        raise unknown("data source", source, SOURCES)
    known = SOURCES[source]
    if source == "digits":
        if path is not None:
            raise InputError(f"{source} comes with its library and takes no path, not {path}; drop --data")
        return _list_digits()
    if path is not None:
        return read_image_folder(_resolve_path(Path(path).expanduser()), known.readable)
    archive = get_archive_name(source, path, size)
    if archive is None:
        raise InputError(f"{source} needs the path of a folder or archive; pass --data PATH")
    dataset = next(dataset for dataset in DATASETS if dataset.key == archive)
    return replace(read_image_folder(fetch_files(archive, dataset.files), known.readable), archive=archive)


def get_archive_name(source: str, path: str | Path | None, size: int) -> str | None:
    """Return the name of the archive of photographs of this size; None if images come from elsewhere."""
    name = SOURCES[source].archive
    if path is not None or name is None:
        return None
    return name + ("-160" if size <= 128 else "-320" if size <= 224 else "")


def _resolve_path(path: Path) -> Path:
    if path.is_dir():
        return path
    if not path.exists():
        raise InputError(f"there is no file or folder {path}; pass --data PATH with one that exists")
    if not is_archive(path):
        raise InputError(f"{path} is neither a folder nor an archive; choose from {', '.join(SUFFIXES)}")
    return extract_cached(path)


DATASETS = read_datasets(__file__)

"""Images with a class for each pixel: a folder, or bundled scenes of digits.

images/ and masks/   a PNG file of the same path for each image; masks/ may have the names of COCO-Stuff,
ADE20K
Pascal VOC           JPEGImages/, SegmentationClass/, and the lists of ImageSets/Segmentation/

A subfolder of images is a split if it is called train, train2017, val, ... Any other is a group, such as a
patient or a video, whose images are in one split. `labels.csv` may assign other groups.

All images are read once into an Arrow file, resized to squares: images with antialiasing, masks to the
nearest pixel. Columns in addition to those of a `RecordFile`: image (RGB bytes), mask (bytes, IGNORE for
pixels that do not count), aspect (original width / height) and labels (of the whole mask).
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from PIL import Image
from torch import Tensor

from automl.base.errors import InputError, unknown
from automl.base.text import read_text
from automl.base.units import pluralize
from automl.data import digits as scenes
from automl.data import shared
from automl.data.arrow import write_mapped
from automl.data.csv_table import read_groups, read_labels
from automl.data.files import SIZE, find_labels_of_images, hash_contents, list_files, name_to_text
from automl.data.pictures import Picture, is_image, open_picture, read_channel
from automl.data.records import RecordFile, Records
from automl.data.remote import local_copy
from automl.data.splits import SPLIT_OF, SPLITS
from automl.data.tally import join_examples
from automl.tasks.segmentation import SegmentationData

FORMAT = 1  # Raise it when the format of the file or the reading changes.
BUNDLED = "digit-scenes"
IMAGES, MASKS = ("images", "JPEGImages"), ("masks", "annotations", "stuffthingmaps", "SegmentationClass")
CLASSES = "classes.txt"  # one class name per line, from label 0 on
IGNORE = 255  # in the cache, whatever value the masks use
LABELS = "a mask: a PNG file with a palette or one 8-bit channel, with labels instead of colours"
SCHEMA = pa.schema(
    [(name, pa.large_binary()) for name in ("image", "mask")]
    + [("name", pa.string()), ("group", pa.string()), ("split", pa.int8()), ("content", pa.binary(SIZE))]
    + [("aspect", pa.float64()), ("labels", pa.list_(pa.uint8())), ("changes", pa.list_(pa.string()))]
)
Row = dict[str, Any]  # a value for each column


@dataclass(frozen=True)
class Sample:
    """An image and its mask. `split` is an index of SPLITS, -1 if the dataset defines none."""

    name: str
    split: int
    group: str | None = None
    image: Path = Path()
    mask: Path = Path()
    content: bytes = b""  # the SHA-256 of both, once it is known


class LabelledImages(Records[RecordFile]):
    """The images of a source, with the names of the labels. `aspect` is the original width / height."""

    noun = "images"

    def __init__(self, file: RecordFile, subset: float) -> None:
        super().__init__(file, subset)
        self.aspect = torch.from_numpy(file.table["aspect"].to_numpy()).float()
        seen = np.unique(file.table["labels"].combine_chunks().flatten()).tolist()
        self.classes: list[str] = file.about["names"] or [str(i) for i in range(max(seen, default=0) + 1)]
        if 2 * len(seen) < len(self.classes) and not file.about["names"]:
            raise InputError(
                f"the masks of {file.about['root']} look like grey levels: of the labels 0 to {seen[-1]} "
                f"only {', '.join(map(str, seen[:9]))} occur, besides pixels that do not count. Number "
                f"classes from 0 on, or name all {len(self.classes)} in {CLASSES}, a line each"
            )
        if len(seen) < 2:
            raise InputError(
                f"the masks of {file.about['root']} must have at least two classes; got {seen} besides "
                f"pixels that do not count. Number classes from 0 on: a foreground of 255 must become 1"
            )

    def tensors(self, rows: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return images `(B, size, size, 3)` and the labels of their pixels `(B, size, size)`, uint8."""
        size, columns = self.file.about["size"], self.file.whole.select(["image", "mask"]).take(rows.numpy())
        images, masks = (
            torch.frombuffer(bytearray(b"".join(columns[name].to_pylist())), dtype=torch.uint8)
            for name in ("image", "mask")
        )
        return images.view(-1, size, size, 3).to(device), masks.view(-1, size, size).to(device)


def is_segmentation(path: str | Path) -> bool:
    """Return whether `path` is a folder of images and masks."""
    return len(_find_folders(local_copy(path))) == 2


def shared_name(data: SegmentationData) -> str | None:
    """Return the name of the images in a search's storage; None for bundled ones, which every node draws."""
    return data.path and f"segmentation {data.path} {data.size} {data.ignore_index}"


def open_labelled_images(data: SegmentationData) -> LabelledImages:
    """Open the images of the folder `data.path`, or else the bundled ones.

    Raises InputError for an unknown source, for a folder or a file that cannot be used, and like `Records`.
    """
    if data.path is None and data.source != BUNDLED:
        raise unknown("source of segmentation", data.source, [BUNDLED])
    file = data.path and shared.find_split(RecordFile, f"{shared_name(data)}")
    return _open_file((file or _open_cache(data)).path, data.subset)


@lru_cache(maxsize=4)
def _open_file(file: Path, subset: float) -> LabelledImages:
    return LabelledImages(RecordFile(file), subset)


def _open_cache(data: SegmentationData) -> RecordFile:
    if data.path is None:
        names, hashes = ["background", *map(str, range(10))], [json.dumps([*scenes.COUNTS.items()]).encode()]
        inputs, make_row = list[Any](scenes.draw_scenes()), partial(_draw_row, size=data.size)
    else:
        root = local_copy(data.path)
        samples, file = find_samples(root), root / CLASSES
        names = read_text(file).splitlines() if file.is_file() else []
        hashes = hash_contents([path for sample in samples for path in (sample.image, sample.mask)])
        both = zip(samples, hashes[::2], hashes[1::2], strict=True)
        inputs = [replace(sample, content=hashlib.sha256(i + m).digest()) for sample, i, m in both]
        make_row = partial(_read_row, data=data, names=names)
        hashes.append(json.dumps([data.ignore_index, [(s.name, s.split, s.group) for s in samples]]).encode())
    about = {"size": data.size, "root": data.path, "names": names}
    key = f"segmentation {FORMAT} {json.dumps([data.size, names])}".encode() + b"".join(hashes)
    row, title = data.size**2 * 4, "images and masks"
    write = partial(write_mapped, title, SCHEMA, about, make_row)
    return shared.open_written(RecordFile, key, inputs, write, row=row, title=title)


def find_samples(root: Path) -> list[Sample]:
    """List the images of a folder. Raises InputError for another folder, and for images without masks."""
    folders, listed = _find_folders(root), dict(_read_voc_lists(root))
    if len(folders) < 2:
        raise InputError(
            f"{root} must be a folder with images/ and masks/ of the same names, the masks PNG files, or in "
            f"the layout of Pascal VOC, COCO-Stuff or ADE20K. Pass --data FOLDER"
        )
    images, masks = folders
    samples = []
    for image in sorted(file for file in list_files(images) if is_image(file)):
        path, in_list = image.relative_to(images), listed.get(image.stem, "")
        if listed and not in_list:
            continue
        first, *rest = path.parent.parts or ("",)
        folder = in_list or first.rstrip("0123456789")
        split = SPLITS.index(SPLIT_OF[folder]) if folder in SPLIT_OF else -1
        group = name_to_text("/".join(rest if split >= 0 and not listed else path.parent.parts))
        mask = masks / path.with_suffix(".png")
        samples.append(Sample(name_to_text(path), split, group or None, image, mask))
    missing = [sample.name for sample in samples if not sample.mask.is_file()]
    missing += sorted(listed.keys() - {sample.image.stem for sample in samples})
    if missing or not samples:
        raise InputError(
            f"each image of {images} needs a mask of the same name, a PNG file, in {masks}. Of "
            f"{pluralize(len(samples), 'images')} {pluralize(len(missing), 'have none or do')} not exist: "
            f"{join_examples(missing)}"
        )
    groups = read_groups(root, read_labels(root))
    return [replace(sample, group=groups.get(sample.image, sample.group)) for sample in samples]


def _find_folders(root: Path) -> list[Path]:
    """Return the folders of images and of masks, if they exist."""
    images = [root / name for name in IMAGES if (root / name).is_dir()]
    masks = [root / name for name in MASKS if next((root / name).rglob("*.png"), None)]
    return images[:1] + masks[:1]


def _read_voc_lists(root: Path) -> Iterator[tuple[str, str]]:
    """Yield the images of Pascal VOC's lists, and the split of each."""
    lists = {file.stem: file for file in (root / "ImageSets" / "Segmentation").glob("*.txt")}
    for name in ("train" if "train" in lists else "trainval", "val", "test"):
        if name in lists:
            split = name.removesuffix("val") or name
            yield from ((image, split) for image in read_text(lists[name]).split())


def _draw_row(scene: scenes.Scene, size: int) -> Row:
    mask = np.zeros(scene.image.shape[:2], np.uint8)
    for category, where in zip(scene.categories, scene.masks, strict=True):
        mask[where] = category
    content = hashlib.sha256(scene.image.tobytes() + mask.tobytes()).digest()
    sample, image = (
        Sample(scene.name, SPLITS.index(scene.split), content=content),
        Image.fromarray(scene.image),
    )
    return _make_row(sample, Picture(image, image.size, 8, ()), mask, size)


def _read_row(sample: Sample, data: SegmentationData, names: Sequence[str]) -> Row:
    labels = read_channel(sample.mask, ("1", "L", "P"), LABELS).astype(np.uint8)
    size = labels.shape[::-1]
    if (picture := open_picture(sample.image, annotated=size)).size != size:
        both = f"{sample.image} and its mask {sample.mask} must have the same size"
        raise InputError(f"{both}; got {picture.size} and {size}, width and height")
    labels = np.where(labels == data.ignore_index, IGNORE, labels)
    largest = int(labels[labels != IGNORE].max(initial=0))
    if largest >= len(names) > 0:
        raise InputError(
            f"{sample.mask} has label {largest}, but {CLASSES} names {len(names)} classes, from 0 to "
            f"{len(names) - 1}. Name all classes, or label pixels that do not count {data.ignore_index}"
        )
    return _make_row(sample, picture, labels, data.size)


def _make_row(sample: Sample, picture: Picture, mask: np.ndarray, size: int) -> Row:
    return {
        "image": picture.image.resize((size, size), Image.Resampling.BILINEAR).tobytes(),
        "mask": Image.fromarray(mask).resize((size, size), Image.Resampling.NEAREST).tobytes(),
        "aspect": picture.size[0] / picture.size[1],
        "labels": np.unique(mask[mask != IGNORE]),
        "changes": picture.changes,
        **{column: getattr(sample, column) for column in ("name", "split", "group", "content")},
    }


def nearly_segmentation(folder: Path) -> Iterator[str]:
    """Yield what is wrong with a folder that is nearly in a layout of segmentation, and what to do."""
    match = find_labels_of_images(folder)
    if match is not None and any(map(is_image, match[2])):
        yield (
            f"looks like images and their masks, in {match[0]}/ and {match[1]}/. They are read from images/ "
            f"and masks/ in the folder of --data, with splits as images/train/ and masks/train/, and each "
            f"mask is a PNG file of the same name. Rename or convert them"
        )

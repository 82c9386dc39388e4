"""Find and read stereo pairs: folders of Scene Flow, KITTI 2012 and 2015 and Middlebury, or a CSV.

Scene Flow   disparity/.../left/0006.pfm and frames_cleanpass/.../left|right/0006.png, anywhere below the
             folder; a folder TEST in the path marks the test split
KITTI 2015   training/image_2, image_3 and disp_occ_0 (or disp_noc_0)
KITTI 2012   training/colored_0, colored_1 (or image_0, image_1) and disp_occ (or disp_noc)
Middlebury   folders with im0.png, im1.png and disp0.pfm or disp0GT.pfm
a CSV        columns left, right, disparity and optionally split and group; paths relative to the CSV

The views of each layout may have any format of IMAGES.

An unknown disparity is infinite. A portable float map (PFM) has one channel. The size of its scale is
ignored, as Scene Flow and Middlebury expect.
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from automl.base.errors import InputError
from automl.base.text import open_text
from automl.data.csv_table import read_groups, read_labels, read_table
from automl.data.download import read_datasets
from automl.data.files import find_on_disk, is_clutter, is_file, list_files, list_folders, name_to_text, walk
from automl.data.pictures import get_suffix, open_picture, read_channel
from automl.data.remote import existing_copy, local_copy
from automl.data.splits import SPLITS

COLUMNS = ("left", "right", "disparity")
VIEWS = (("left", "right"), ("image_2", "image_3"), ("image_0", "image_1"), ("colored_0", "colored_1"))
FRAMES = ("frames_cleanpass", "frames_finalpass")  # The first that exists is used, as PSMNet does.
IMAGES = (".png", ".webp", ".jpg", ".jpeg")  # suffixes of the views, also in capitals
KITTI = (  # folders: left, right, and disparities, preferably with those of occluded pixels
    ("image_2", "image_3", ("disp_occ_0", "disp_noc_0")),
    ("colored_0", "colored_1", ("disp_occ", "disp_noc")),
    ("image_0", "image_1", ("disp_occ", "disp_noc")),
)
MIDDLEBURY = ("disp0.pfm", "disp0GT.pfm")


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Three files.

    Attributes:
        split: one of SPLITS; empty if the source defines none.
        group: the sequence or scene that must stay in one split; empty if the pair stands alone.
        content: the SHA-256 of the files, once it is known.
    """

    name: str
    left: Path
    right: Path
    disparity: Path
    split: str = ""
    group: str = ""
    content: bytes = b""

    @property
    def files(self) -> tuple[Path, Path, Path]:
        return self.left, self.right, self.disparity


def is_stereo(path: str | Path) -> bool:
    """Return whether there are pairs at `path`: a folder in one of the layouts, or such a CSV."""
    path = local_copy(path)
    if path.is_dir():
        return next(_list_in_folder(path), None) is not None
    if path.suffix.lower() != ".csv" or not path.is_file():
        return False
    with open_text(path, errors="replace") as file:
        try:
            return {*COLUMNS} <= {*next(filter(None, csv.reader(file)), [])}
        except csv.Error:
            return False


def find_pairs(path: str | Path) -> list[Pair]:
    """Return all pairs at `path`, sorted by name. In a folder, `labels.csv` may assign groups to the left
    images.

    Raises InputError if there are none, if a file is missing, and for an invalid CSV.
    """
    path = existing_copy(path)
    pairs = (
        sorted(_list_in_folder(path), key=lambda pair: pair.name) if path.is_dir() else list(_read_csv(path))
    )
    groups = read_groups(path, read_labels(path))
    pairs = [replace(pair, group=groups.get(pair.left, pair.group)) for pair in pairs]
    if not pairs:
        raise InputError(
            f"{path} has no stereo pairs. It must be a folder in the layout of Scene Flow, KITTI or "
            f"Middlebury, or a CSV with the columns {', '.join(COLUMNS)}"
        )
    for pair in pairs:
        for file in pair.files:
            if not is_file(file):
                raise InputError(f"there is no file {file}, which the pair {pair.name} needs")
    return pairs


def _list_in_folder(root: Path) -> Iterator[Pair]:
    for folder in (root, root / "training"):
        if pairs := list(_list_kitti(folder)):
            yield from pairs
            return
    yield from _walk_folders(root)


def _walk_folders(root: Path) -> Iterator[Pair]:
    """Yield the pairs of Scene Flow and Middlebury, whose folders may lie deeper."""
    for folder, folders, files in walk(root):
        frames = next((frames for frames in FRAMES if frames in folders), None)
        if "disparity" in folders and frames is not None:
            yield from _list_sceneflow(root, folder, frames)
            folders[:] = [name for name in folders if name not in ("disparity", *FRAMES)]
        maps = [file for file in MIDDLEBURY if file in files]
        if not maps:
            continue
        left, right = (_find_image(folder / f"{view}.png") for view in ("im0", "im1"))
        if {left.name, right.name} <= {*files}:
            yield Pair(
                name=name_to_text(folder.relative_to(root)),
                left=left,
                right=right,
                disparity=folder / maps[0],
            )


def _list_sceneflow(root: Path, folder: Path, frames: str) -> Iterator[Pair]:
    below = folder / "disparity"
    maps = (
        f / name for f, _, files in walk(below) if f.name == "left" for name in files if name.endswith(".pfm")
    )
    for disparity in sorted(maps):
        within = disparity.relative_to(below)
        images = [folder / frames / within.parent.parent / side / within.name for side in ("left", "right")]
        left, right = (_find_image(image) for image in images)
        group = (folder / within.parent.parent).relative_to(root)
        yield Pair(
            name=name_to_text(group / disparity.stem),
            left=left,
            right=right,
            disparity=disparity,
            # A dataset with a folder TEST also has a folder TRAIN. Other data are for training.
            split="test" if "TEST" in group.parts else "train" if "TRAIN" in group.parts else "",
            group=name_to_text(group),
        )


def _find_image(image: Path) -> Path:
    """Return the file of this name in one of IMAGES; that with the first suffix if there is none."""
    files = [image.with_suffix(case) for suffix in IMAGES for case in (suffix, suffix.upper())]
    return next((file for file in files if file.exists()), files[0])


def _list_kitti(folder: Path) -> Iterator[Pair]:
    for left, right, maps in KITTI:
        known = next((name for name in maps if (folder / name).is_dir()), None)
        if known is None or not (folder / left).is_dir():
            continue
        for disparity in sorted((folder / known).glob("*.png")):
            if is_clutter(disparity.name):
                continue
            yield Pair(
                name=name_to_text(disparity.stem),
                left=_find_image(folder / left / disparity.name),
                right=_find_image(folder / right / disparity.name),
                disparity=disparity,
            )
        return


def _read_csv(path: Path) -> Iterator[Pair]:
    table = read_table(path)
    if lacking := [name for name in COLUMNS if name not in table.columns]:
        raise InputError(
            f"{path} must be a folder, or a CSV with the columns {', '.join(COLUMNS)}; "
            f"it lacks {', '.join(lacking)}"
        )
    for line, row in table.rows:
        empty = [name for name in COLUMNS if not row[name].strip()]
        name, split, group = (row.get(key, "").strip() for key in ("left", "split", "group"))
        if empty:
            raise InputError(f"{path}, line {line}: {', '.join(empty)} must not be empty")
        if split and split not in SPLITS:
            raise InputError(f"{path}, line {line}: split must be one of {', '.join(SPLITS)}; got {split!r}")
        left, right, disparity = (find_on_disk(path.parent, row[name].strip()) for name in COLUMNS)
        yield Pair(name=name, left=left, right=right, disparity=disparity, split=split, group=group)
    splits = {row.get("split", "").strip() for _, row in table.rows}
    if "" in splits and len(splits) > 1:
        raise InputError(f"{path}: either all lines or no lines must have a split")


def nearly_stereo(folder: Path) -> Iterator[str]:
    """Yield what is wrong with a folder that is nearly in a layout of stereo pairs, and what to do."""
    folders = list_folders(folder)
    for left, right in VIEWS:
        others = [name for name in folders if name not in (left, right) and "disp" not in name]
        if left in folders and right in folders and not others:
            views = [{file.stem for file in list_files(folders[name])} for name in (left, right)]
            if views[0] and views[0] == views[1]:
                yield (
                    f"looks like stereo pairs, {left}/ and {right}/ with images of the same names, whose "
                    f"disparities are not found. Give a CSV with the columns left, right and disparity"
                )


DATASETS = read_datasets(__file__)


KITTI_SCALE = 256.0  # per pixel of disparity in KITTI's 16-bit PNG files
DISPARITIES = "a disparity map: a PFM file, or a 16-bit PNG file of one channel as in KITTI"
SIXTEEN_BIT = ("I;16", "I;16B", "I;16L", "I")


def read_views(
    left: str | Path, right: str | Path, annotated: tuple[int, int] | None = None
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Return both views of a pair, RGB, uint8 `(H, W, 3)`, and the changes to them.

    Views of more than 8 bits are scaled by the same bits, since matching pixels must look alike.

    `annotated` is the width and height of the disparity map. A view that has this size only as it is stored
    is not turned by EXIF.

    Raises InputError if a file does not exist or is no image.
    """
    files = (left, right)
    views = [open_picture(file, annotated=annotated) for file in files]
    bits = max(view.bits for view in views)
    views = [
        view if view.bits == bits else open_picture(file, annotated=annotated, bits=bits)
        for file, view in zip(files, views, strict=True)
    ]
    changes = tuple(dict.fromkeys(change for view in views for change in view.changes))
    return np.asarray(views[0].image), np.asarray(views[1].image), changes


def read_disparity(path: str | Path) -> np.ndarray:
    """Return disparities in pixels, float32 `(H, W)`, infinite where they are unknown.

    A PFM file has NaN, infinite or negative values there. A 16-bit PNG file of KITTI has 256 per pixel of
    disparity, and 0 if it is unknown.

    Raises InputError for a file that cannot be read or has no known disparity.
    """
    if get_suffix(str(path)) == ".pfm":
        values = read_channel(path, ("F",), DISPARITIES)
    else:
        values = read_channel(path, SIXTEEN_BIT, DISPARITIES).astype(np.float32) / KITTI_SCALE
        values[values == 0] = np.inf
    known = np.isfinite(values) & (values >= 0)
    if not known.any():
        raise InputError(f"{path} has no known disparity; remove the pair, or add its disparities")
    return np.where(known, values, np.float32(np.inf))

"""Test readers of stereo pairs: disparity maps, layouts of folders, CSV files, and refused files."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image

from automl.tasks.stereo.data.dataset import read_pair
from automl.tasks.stereo.data.pairs import find_pairs, write_pfm

pytestmark = pytest.mark.usefixtures("cache")

DRAW = np.random.default_rng(0)
MAP = DRAW.uniform(0, 40, (6, 10)).astype(np.float32)


def image(path: Path, height: int = 6, width: int = 10) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(DRAW.integers(0, 256, (height, width, 3), np.uint8)).save(path)
    return path


def pfm(path: Path, values: np.ndarray = MAP) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_pfm(path, values)
    return path


def kitti(path: Path, values: np.ndarray = MAP) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray((values * 256).round().astype(np.uint16)).save(path)
    return path


def make_sceneflow(root: Path) -> None:
    for location in ("FlyingThings3D|TRAIN/A/0000", "FlyingThings3D|TEST/B/0001", "Monkaa|treeflight"):
        top, below = location.split("|")
        for frame in ("0006", "0007"):
            pfm(root / top / "disparity" / below / "left" / f"{frame}.pfm")
            pfm(root / top / "disparity" / below / "right" / f"{frame}.pfm")
            for side in ("left", "right"):
                image(root / top / "frames_cleanpass" / below / side / f"{frame}.png")


def make_kitti_2015(root: Path) -> None:
    for frame in ("000000_10", "000001_10"):
        for folder in ("image_2", "image_3"):
            image(root / "training" / folder / f"{frame}.png")
            image(root / "training" / folder / f"{frame[:-2]}11.png")  # the next frame has no disparities
        kitti(root / "training" / "disp_occ_0" / f"{frame}.png")
        kitti(root / "training" / "disp_noc_0" / f"{frame}.png")


def make_kitti_2012(root: Path) -> None:
    for folder in ("colored_0", "colored_1", "image_0", "image_1"):
        image(root / folder / "000000_10.png")
    kitti(root / "disp_occ" / "000000_10.png")


def make_middlebury(root: Path) -> None:
    for scene, name in (("Adirondack", "disp0GT.pfm"), ("Piano", "disp0.pfm")):
        image(root / "trainingQ" / scene / "im0.png")
        image(root / "trainingQ" / scene / "im1.png")
        pfm(root / "trainingQ" / scene / name)


def make_csv(root: Path) -> None:
    for i in range(2):
        image(root / f"l{i}.png")
        image(root / f"r{i}.png")
        pfm(root / f"d{i}.pfm")
    (root / "pairs.csv").write_text("left,right,disparity\nl0.png,r0.png,d0.pfm\nl1.png,r1.png,d1.pfm\n")


LAYOUTS: list[tuple[Callable[[Path], None], str, dict[str, str]]] = [
    (
        make_sceneflow,
        "",
        {
            "FlyingThings3D/TEST/B/0001/0006": "test",
            "FlyingThings3D/TEST/B/0001/0007": "test",
            "FlyingThings3D/TRAIN/A/0000/0006": "train",
            "FlyingThings3D/TRAIN/A/0000/0007": "train",
            "Monkaa/treeflight/0006": "",
            "Monkaa/treeflight/0007": "",
        },
    ),
    (make_kitti_2015, "", {"000000_10": "", "000001_10": ""}),
    (make_kitti_2015, "training", {"000000_10": "", "000001_10": ""}),
    (make_kitti_2012, "", {"000000_10": ""}),
    (make_middlebury, "", {"trainingQ/Adirondack": "", "trainingQ/Piano": ""}),
    (make_csv, "pairs.csv", {"l0.png": "", "l1.png": ""}),
]


@pytest.mark.parametrize(("size", "orientation"), [((6, 10), 6), ((10, 6), 6), ((6, 10), 3)])
def test_views_turned_by_exif_have_the_size_of_their_disparities(tmp_path, size, orientation):
    """The map has the size of the upright or of the stored view."""
    make_csv(tmp_path)
    for name in ("l0.png", "r0.png"):
        pixels = np.zeros((*size, 3), np.uint8)
        pixels[0, 0] = 255
        exif = Image.Exif()
        exif[ExifTags.Base.Orientation] = orientation
        Image.fromarray(pixels).save(tmp_path / name, exif=exif)
    left, right, disparity, changes = read_pair(find_pairs(tmp_path / "pairs.csv")[0])
    assert left.shape == right.shape == (*disparity.shape, 3) == (6, 10, 3)
    corner = {((6, 10), 6): (0, 0), ((10, 6), 6): (0, 9), ((6, 10), 3): (5, 9)}[size, orientation]
    assert left[corner].min() == right[corner].min() == 255
    assert len(changes) == 1


def test_16_bit_views_are_scaled_alike(tmp_path):
    """Both are scaled even if only the right one has a value that needs another bit."""
    make_csv(tmp_path)
    values = np.linspace(0, 1000, 60).astype(np.uint16).reshape(6, 10)
    for name, largest in (("l0.png", 1000), ("r0.png", 4000)):
        values[0, 0] = largest
        Image.fromarray(values).save(tmp_path / name)
    left, right, *_ = read_pair(find_pairs(tmp_path / "pairs.csv")[0])
    np.testing.assert_array_equal(left[1:], right[1:])
    assert left[5, 9, 0] == 1000 >> 4


@pytest.mark.parametrize("make", [make_sceneflow, make_kitti_2015, make_kitti_2012, make_middlebury])
def test_files_of_macos_and_links_to_parents_are_no_pairs(tmp_path, make):
    make(tmp_path)
    names = [pair.name for pair in find_pairs(tmp_path)]
    for file in [file for file in tmp_path.rglob("*") if file.is_file()]:
        file.with_name(f"._{file.name}").write_bytes(b"of macOS")
    (next(folder for folder in tmp_path.iterdir() if folder.is_dir()) / "again").symlink_to(tmp_path)
    assert [pair.name for pair in find_pairs(tmp_path)] == names

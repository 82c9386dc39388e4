"""Test stereo pairs in training: the bundled set, splits, crops and the cache."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image

from automl.base.errors import InputError
from automl.tasks.stereo import StereoData
from automl.tasks.stereo.data import is_stereo, open_pairs, planes
from automl.tasks.stereo.data.dataset import read_pair
from automl.tasks.stereo.data.pairs import find_pairs, read_disparity

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planes, "COUNTS", {"train": 3, "validation": 2, "test": 2})


def write_csv(folder: Path, count: int, header: str = "left,right,disparity", split: str = "") -> Path:
    draw = np.random.default_rng(1)
    lines = [header]
    for i in range(count):
        for name in (f"l{i}.png", f"r{i}.png"):
            Image.fromarray(draw.integers(0, 256, (20, 30, 3), np.uint8)).save(folder / name)
        pfm(folder / f"d{i}.pfm", draw.uniform(0, 9, (20, 30)))
        lines.append(f"l{i}.png,r{i}.png,d{i}.pfm{split}")
    (folder / "pairs.csv").write_text("\n".join(lines))
    return folder / "pairs.csv"


def test_right_image_at_x_minus_disparity_matches_the_left_at_x():
    """It matches at pixels of known disparity. With another disparity it does not."""
    errors, wrong = [], []
    for i in range(6):
        draw = np.random.default_rng([17, 0, i])
        left, right, disparity = planes.render(planes.draw_scene(draw), planes.HEIGHT, planes.WIDTH)
        y, x = np.nonzero(np.isfinite(disparity))
        u = x - disparity[y, x]
        for errors_of_shift, shift in ((errors, 0), (wrong, 3)):
            at = np.clip(u + shift, 0, planes.WIDTH - 1)
            seen = planes.interpolate(right.astype(float), at, y.astype(float))
            errors_of_shift.append(np.abs(seen - left[y, x]).mean(1))
    assert np.median(np.concatenate(errors)) < 3 < 0.5 * np.median(np.concatenate(wrong))
    assert (np.concatenate(errors) < 12).mean() > 0.85


def test_hidden_pixels_have_no_disparity_and_the_bundled_set_is_reproducible():
    texture = np.random.default_rng(0).uniform(0, 255, (60, 60, 3))
    back = planes.Surface((4.0, 0.0, 0.0), texture, 1.0)
    front = planes.Surface((10.0, 0.0, 0.0), texture[::-1], 1.0, (30.0, 8.0, 11.0, 8.0))
    _, _, disparity = planes.render([back, front], 24, 60)
    known = np.isfinite(disparity)
    assert not known[:, :4].any()  # outside
    row = disparity[10]
    assert (row[30:42] == 10).all()
    assert np.isinf(row[24:30]).all()  # columns 20 to 25 of the right image show the front
    assert (row[4:24] == 4).all()
    assert (row[42:] == 4).all()
    first, again = (planes.render(planes.draw_scene(np.random.default_rng(5)), 80, 176) for _ in range(2))
    assert all((array == same).all() for array, same in zip(first, again, strict=True))
    known = np.isfinite(first[2])
    assert 0.5 < known.mean() < 1
    assert first[2][known].min() >= 0
    assert first[2][known].max() < 48


@pytest.mark.usefixtures("few")
def test_bundled_splits_are_opened_from_the_cache():
    data = open_pairs(StereoData(source="planes"))
    assert [len(data.rows(split)) for split in ("train", "validation", "test")] == [3, 2, 2]
    for split in planes.COUNTS:
        for i, row in enumerate(data.rows(split)):
            expected = planes.draw_pair(split, i)
            assert all((a == b).all() for a, b in zip(data.pair(row), expected, strict=True))
    assert data.describe_splits() == dict.fromkeys(planes.COUNTS, "the dataset's own")


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("at", [(0.0, 0.0), (1.0, 1.0), (0.5, 0.25)])
def test_images_and_disparities_have_the_same_crop(at):
    data = open_pairs(StereoData(source="planes"))
    row = int(data.rows("train")[0])
    top, left = round(at[0] * (80 - 64)), round(at[1] * (176 - 128))
    for whole, crop in zip(data.pair(row), data.crop(row, at, 64, 128), strict=True):
        assert (crop == whole[top : top + 64, left : left + 128]).all()


def test_splits_are_held_out_by_content_and_do_not_move(tmp_path):
    path = write_csv(tmp_path, 24)
    before = open_pairs(StereoData(source="pairs", path=str(path)))
    names_of_splits = {split: {before.file.names[r] for r in before.rows(split)} for split in planes.COUNTS}
    assert sum(map(len, names_of_splits.values())) == 24
    assert all(names_of_splits.values())
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], *lines[:4:-1]]))  # fewer, in another order
    after = open_pairs(StereoData(source="pairs", path=str(path)))
    for split in planes.COUNTS:
        assert {after.file.names[r] for r in after.rows(split)} <= names_of_splits[split]


def test_a_table_of_pairs_has_a_summary_and_a_manifest(tmp_path):
    path = write_csv(tmp_path, 8)
    before = open_pairs(StereoData(source="pairs", path=str(path))).manifest()
    assert len(before) == 8
    pfm(tmp_path / "d0.pfm", np.ones((20, 30)))
    assert open_pairs(StereoData(source="pairs", path=str(path))).manifest().digest != before.digest


DRAW = np.random.default_rng(0)


MAP = DRAW.uniform(0, 40, (6, 10)).astype(np.float32)


def image(path: Path, height: int = 6, width: int = 10) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(DRAW.integers(0, 256, (height, width, 3), np.uint8)).save(path)
    return path


def pfm(path: Path, values: np.ndarray = MAP) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values.astype(np.float32)).save(path)
    return path


def kitti(path: Path, values: np.ndarray = MAP) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray((values * 256).round().astype(np.uint16)).save(path)
    return path


@pytest.mark.parametrize(("order", "scale"), [("<f4", b"-1.0"), (">f4", b"1.0"), (">f4", b"0.0039")])
def test_pfm_of_both_byte_orders_is_read(tmp_path, order, scale):
    content = b"Pf\n10 6\n" + scale + b"\n" + MAP[::-1].astype(order).tobytes()
    (tmp_path / "a.pfm").write_bytes(content)
    np.testing.assert_array_equal(read_disparity(tmp_path / "a.pfm"), MAP)


def test_unknown_disparities_of_each_format(tmp_path):
    values = MAP.copy()
    values[0, :4] = np.inf, np.nan, -np.inf, -3.0
    read = read_disparity(pfm(tmp_path / "a.pfm", values))
    assert (read[0, :4] == np.inf).all()
    np.testing.assert_array_equal(read[1:], MAP[1:])
    values = np.array([[0, 1, 256], [300, 65535, 128]], np.uint16)
    Image.fromarray(values).save(tmp_path / "a.png")
    read = read_disparity(tmp_path / "a.png")
    assert read[0, 0] == np.inf
    np.testing.assert_array_equal(read.ravel()[1:], values.ravel()[1:] / 256)
    with pytest.raises(InputError, match=r"view\.png must be a disparity map: a PFM file, or a 16-bit PNG"):
        read_disparity(image(tmp_path / "view.png"))


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


@pytest.mark.parametrize(("make", "below", "expected"), LAYOUTS)
def test_pairs_of_each_layout_are_read(tmp_path, make, below, expected):
    make(tmp_path)
    assert is_stereo(tmp_path / below)
    pairs = find_pairs(tmp_path / below)
    assert {pair.name: pair.split for pair in pairs} == expected
    sequences = {name.rpartition("/")[0] for name in expected} if make is make_sceneflow else {""}
    assert {pair.group for pair in pairs} == sequences
    for pair in pairs:
        left, right, disparity, _ = read_pair(pair)
        assert left.shape == right.shape == (*disparity.shape, 3) == (6, 10, 3)
        assert left.tobytes() != right.tobytes()
        np.testing.assert_allclose(disparity, MAP, atol=1 / 512)


def test_other_folders_and_tables_are_no_stereo_pairs(tmp_path):
    image(tmp_path / "cat" / "0.png")
    (tmp_path / "labels.csv").write_text("name,label\n0.png,cat\n")
    assert not is_stereo(tmp_path)
    assert not is_stereo(tmp_path / "labels.csv")
    assert not is_stereo(tmp_path / "nowhere")
    with pytest.raises(InputError, match="has no stereo pairs"):
        find_pairs(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("left,right,disparity\nl0.png,,d0.pfm\n", "line 2: right must not be empty"),
        ("left,right,disparity\nl0.png,r9.png,d0.pfm\n", r"there is no file .*r9\.png, which the pair"),
        (
            "left,right,disparity,split\nl0.png,r0.png,d0.pfm,test\nl1.png,r1.png,d1.pfm,\n",
            "either all lines or no lines must have a split",
        ),
    ],
)
def test_invalid_csv_is_rejected_with_its_line(tmp_path, text, message):
    make_csv(tmp_path)
    (tmp_path / "pairs.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        find_pairs(tmp_path / "pairs.csv")


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

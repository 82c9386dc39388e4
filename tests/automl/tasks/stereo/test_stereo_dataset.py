"""Test stereo pairs in training: the bundled set, splits, crops and the cache."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from automl.base.errors import InputError
from automl.tasks.stereo import StereoData
from automl.tasks.stereo.data import open_pairs, planes
from automl.tasks.stereo.data.dataset import summarise_stereo
from automl.tasks.stereo.data.files import write_pfm

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
        write_pfm(folder / f"d{i}.pfm", draw.uniform(0, 9, (20, 30)))
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


def test_hidden_and_outside_pixels_have_no_disparity():
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


def test_bundled_set_is_reproducible_and_below_the_maximum():
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
    with pytest.raises(InputError, match="planes is bundled and takes no path"):
        open_pairs(StereoData(source="planes", path="somewhere"))


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("at", [(0.0, 0.0), (1.0, 1.0), (0.5, 0.25)])
def test_images_and_disparities_have_the_same_crop(at):
    data = open_pairs(StereoData(source="planes"))
    row = int(data.rows("train")[0])
    top, left = round(at[0] * (80 - 64)), round(at[1] * (176 - 128))
    for whole, crop in zip(data.pair(row), data.crop(row, at, 64, 128), strict=True):
        assert (crop == whole[top : top + 64, left : left + 128]).all()


@pytest.mark.usefixtures("few")
def test_crop_beyond_the_pair_has_no_disparity():
    data = open_pairs(StereoData(source="planes"))
    row = int(data.rows("train")[0])
    left, right, disparity = data.crop(row, (0.7, 0.3), 96, 128)
    assert not left[80:].any()
    assert not right[80:].any()
    assert np.isinf(disparity[80:]).all()
    assert left[:80].any()


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


@pytest.mark.parametrize(("count", "split"), [(1, ""), (3, ",test")])
def test_too_few_pairs_are_rejected(tmp_path, count, split):
    path = write_csv(
        tmp_path, count, "left,right,disparity,split" if split else "left,right,disparity", split
    )
    with pytest.raises(InputError, match="Add stereo pairs, or define the splits"):
        open_pairs(StereoData(source="pairs", path=str(path)))


def test_manifest_lists_each_pair_and_changes_with_its_content(tmp_path):
    path = write_csv(tmp_path, 8)
    before = open_pairs(StereoData(source="pairs", path=str(path))).manifest()
    assert len(before) == 8
    write_pfm(tmp_path / "d0.pfm", np.ones((20, 30)))
    assert open_pairs(StereoData(source="pairs", path=str(path))).manifest().digest != before.digest


def test_summary_of_a_table_of_pairs(tmp_path):
    summary = summarise_stereo(write_csv(tmp_path, 12))
    assert sum(summary.pairs.values()) == 12
    assert all(summary.pairs.values())
    assert (summary.known, summary.sizes) == (1, [(30, 20)])
    assert summary.disparities[0] < summary.disparities[1] < summary.disparities[2] < 9
    lines = list(summary.lines())
    assert "sizes       30 x 20 pixels" in lines
    assert lines[-1].startswith("disparity   known of 100% of the pixels; median 4.")

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from automl.base.errors import InputError
from automl.tasks.sequence_classification.data import open_sequences
from automl.tasks.sequence_classification.data.formats import read_unlabelled

pytestmark = pytest.mark.usefixtures("cache")

X = np.random.default_rng(0).normal(size=(20, 3, 8))
GOOD: dict[str, Any] = {
    "x_train": X,
    "y_train": np.arange(20) % 2 + 9,
    "x_test": X[:4] + 1,
    "y_test": np.array([9, 9, 10, 10]),
}


def save(path: Path, without: str = "", **more: Any) -> Path:
    arrays = {name: array for name, array in (GOOD | more).items() if name != without}
    np.savez_compressed(path, **arrays)
    return path


def test_arrays_lengths_subjects_and_names(tmp_path: Path) -> None:
    path = save(tmp_path / "d.npz")
    test = open_sequences("series", "test", path=path)
    assert (test.classes, test.channels, test.subjects) == (("9", "10"), ("dim0", "dim1", "dim2"), None)
    assert test.labels.tolist() == [0, 0, 1, 1]
    assert (test.values(2) == (X[2] + 1).astype(np.float32)).all()
    assert test.names() == [f"test/{i}" for i in range(4)]
    lengths = np.full(20, 8)
    lengths[3] = 2
    people = np.repeat(["p1", "p2", "p3", "p4", "p5"], 4)
    x = X.copy()
    x[3, :, 2:] = np.nan  # Padding is not read.
    path = save(
        tmp_path / "d.npz",
        x_train=x,
        lengths_train=lengths,
        subject_train=people,
        channels=np.array(["x", "y", "z"]),
        y_train=np.tile(["up", "down"], 10),
        y_test=np.array(["up"] * 4),
    )
    train, validation = (open_sequences("series", split, path=path) for split in ("train", "validation"))
    assert train.channels == ("x", "y", "z")
    assert train.classes == ("down", "up")
    assert not set(train.subjects or []) & set(validation.subjects or [])
    assert sorted([*train.lengths.tolist(), *validation.lengths.tolist()]) == [2] + [8] * 19


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"y_train": np.zeros(20, int)}, "the train split needs sequences of two classes; it has 20, of '0'"),
        ({"lengths_train": np.full(20, 9)}, r"lengths_train\[0\] must lie between 0 and 8, not 9"),
        ({"x_train": np.full_like(X, np.nan)}, r"x_train\[0\]: all values of the sequence are missing"),
        (
            {"x_train": X * np.where(np.arange(20) == 7, 1e300, 1)[:, None, None]},
            r"x_train\[7\]: values must be finite",
        ),
        (
            {"x_train": np.array([[1], [2, 3]] * 10, dtype=object)},
            "x_train is an array of objects, which is not read since it can run code. Pad",
        ),
    ],
)
def test_invalid_arrays_are_rejected(change: dict[str, Any], text: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=text) as raised:
        open_sequences("series", "train", path=save(tmp_path / "d.npz", **change))
    assert str(raised.value).startswith(f"{tmp_path}") or "from" in str(raised.value)


@pytest.mark.parametrize(
    ("axes", "more", "channels", "assumed"),
    [
        ((3, 8), {}, 3, False),
        ((8, 3), {}, 3, True),  # The longer axis has the steps.
        ((8, 3), {"order": "NTC"}, 3, False),
        ((8, 3), {"channels": list("abc")}, 3, False),
        ((5, 5), {}, 5, False),
    ],
)
def test_steps_may_come_before_channels(
    axes: tuple[int, int],
    more: dict[str, Any],
    channels: int,
    assumed: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    x = np.arange(20 * axes[0] * axes[1], dtype=float).reshape(20, *axes)
    path = save(tmp_path / "d.npz", x_train=x, x_test=x[:4], **more)
    test = open_sequences("series", "test", path=path)
    assert len(test.channels) == channels
    steps_first = channels != axes[0]
    assert (test.values(1) == (x[1].T if steps_first else x[1])).all()
    text = 'x_train (20, 8, 3) is read as 8 steps of 3 channels. Save the file with order="NCT" if'
    assert (text in " ".join(capsys.readouterr().err.split())) == assumed


@pytest.mark.parametrize(("axes", "count"), [((3, 8), 3), ((8, 3), 3), ((8, 3), 8), ((5, 9), 9)])
def test_model_identifies_the_axis_of_channels(axes: tuple[int, int], count: int, tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.zeros((2, *axes)))
    shapes = [
        values.shape for _, values in read_unlabelled(tmp_path / "d.npz", [str(i) for i in range(count)])
    ]
    assert shapes == [(count, sum(axes) - count)] * 2


@pytest.mark.parametrize("seed", range(20))
def test_damaged_file_is_not_read_as_objects(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "d.npz"
    np.savez(path, **GOOD)  # Without compression the headers of the arrays can be changed.
    content, draw = bytearray(path.read_bytes()), np.random.default_rng(seed)
    head = content.index(b"NUMPY") - 1
    content[head + draw.integers(120)] = draw.integers(128, 256)
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"d.npz is damaged or not an NPZ file") as raised:
        open_sequences("series", "train", path=path)
    assert "pickle" not in str(raised.value)

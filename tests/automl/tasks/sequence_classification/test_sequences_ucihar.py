import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from automl.base.errors import InputError
from automl.data.splits import FRACTION
from automl.tasks.sequence_classification.data import Sequences, open_sequences
from automl.tasks.sequence_classification.data.dataset import choose_subjects
from automl.tasks.sequence_classification.data.ucihar import INNER, SIGNALS
from tests.helpers.fake_ucihar import (
    ACTIVITIES,
    TEST_SUBJECTS,
    TRAIN_SUBJECTS,
    windows,
    write_folder,
    write_zip,
)

pytestmark = pytest.mark.usefixtures("cache")

WRITERS: dict[str, Callable[[Path], Path]] = {
    "folder": write_folder,
    "folder above it": lambda root: write_folder(root).parent,
    "zip": lambda root: write_zip(root / "har.zip"),
    "zip in a zip": lambda root: write_zip(root / "har.zip", nested=True),
    "zip in a folder": lambda root: write_zip(root / INNER).parent,
}


def subjects(sequences: Sequences) -> set[str]:
    assert sequences.subjects is not None
    return set(sequences.subjects)


@pytest.fixture(params=WRITERS)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    written = WRITERS[request.param](tmp_path / "data")
    if request.param == "zip in a folder":
        shutil.rmtree(written / INNER.removesuffix(".zip"))
    return written


@pytest.mark.parametrize("source", ["ucihar", "series"])
def test_splits_are_by_subject(path: Path, source: str) -> None:
    splits = {split: open_sequences(source, split, path=path) for split in ("train", "validation", "test")}
    assert {split: len(sequences) for split, sequences in splits.items()} == {
        "train": 60,
        "validation": 12,
        "test": 24,
    }
    assert subjects(splits["test"]) == {str(i) for i in TEST_SUBJECTS[:2]}
    assert subjects(splits["train"]) | subjects(splits["validation"]) == {str(i) for i in TRAIN_SUBJECTS[:6]}
    assert not subjects(splits["train"]) & subjects(splits["validation"])
    for sequences in splits.values():
        assert sequences.classes == ACTIVITIES
        assert sequences.channels == SIGNALS
        assert (sequences.steps, set(sequences.lengths.tolist())) == (128, {128})
        assert sequences.labels.bincount().tolist() == [len(sequences) // 6] * 6


def test_values_match_the_files(tmp_path: Path) -> None:
    path = write_folder(tmp_path)
    test = open_sequences("ucihar", "test", path=path)
    expected, activity, person = windows(TEST_SUBJECTS[:2], 12, len("test"))
    for i in range(len(test)):
        np.testing.assert_allclose(test.values(i), expected[i], rtol=1e-6)
    assert test.labels.tolist() == (activity - 1).tolist()
    assert test.subjects == [str(i) for i in person]
    assert test.names()[5] == "test/5"


def test_more_subjects_move_no_other_subject(tmp_path: Path) -> None:
    held = []
    for count in (6, 12, 21):
        root = write_folder(tmp_path / str(count), each=6, train=TRAIN_SUBJECTS[:count])
        held.append(subjects(open_sequences("ucihar", "validation", path=root)))
    assert held[0] < held[1] < held[2]
    assert held[2] == {"8", "17", "27"}, "of the published 21"


@pytest.mark.parametrize("count", [2, 3, 7, 50])
@pytest.mark.parametrize("split", ["validation", "test"])
def test_at_least_one_subject_and_not_all(count: int, split: str) -> None:
    for start in range(0, 2000, count):
        held_out = choose_subjects([f"person {i}" for i in range(start, start + count)], FRACTION, split)
        assert 1 <= held_out.sum() < count
    assert abs(choose_subjects([str(i) for i in range(3000)], FRACTION, split).mean() - FRACTION) < 0.03


SIGNAL = "train/Inertial Signals/body_gyro_y_train.txt"


def drop(folder: Path, name: str) -> None:
    content = (folder / name).read_text().split("\n")
    (folder / name).write_text("\n".join(content[1:]))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: drop(f, SIGNAL), "body_gyro_y_train.txt has 71 windows and y_train.txt has 72"),
        (lambda f: drop(f, "test/subject_test.txt"), "subject_test.txt has 23 lines and y_test.txt has 24"),
    ],
)
def test_invalid_folders_are_rejected(damage: Callable[[Path], object], message: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    damage(folder)
    with pytest.raises(InputError, match=message):
        open_sequences("ucihar", "train", path=folder)

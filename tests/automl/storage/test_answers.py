"""File of predictions for a split."""

from pathlib import Path

import numpy as np
import pytest

from automl.storage.storage import Storage
from automl.storage.trial_files import ANSWERS_FILE, Answers, read_answers


@pytest.mark.parametrize(("count", "classes"), [(1, 1), (9, 3), (1000, 300)])
def test_written_file_is_read(count: int, classes: int, tmp_path: Path) -> None:
    true, answered = np.random.default_rng(count).integers(0, classes, (2, count))
    labels = [f"Klasse ä {i}" for i in range(classes)]
    values = (true == answered).astype(float)
    Answers(labels=labels, true=true, answered=answered, values=values).save(Storage(tmp_path))
    answers = read_answers(Storage(tmp_path))
    assert answers.labels == labels
    for ours, theirs in ((answers.true, true), (answers.answered, answered), (answers.values, values)):
        assert ours.tolist() == theirs.tolist()
    assert answers.card.matrix.sum() == count
    assert (tmp_path / ANSWERS_FILE).stat().st_size < 1500 + 4 * count + 10 * classes


def test_missing_or_damaged_file_gives_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert read_answers(Storage(tmp_path)) is None
    assert not caplog.records
    (tmp_path / ANSWERS_FILE).write_bytes(b"PK\x03\x04 cut off")
    assert read_answers(Storage(tmp_path)) is None
    assert "answers.npz of" in caplog.text


def test_answers_of_a_retrieval(tmp_path: Path) -> None:
    ranks = np.random.default_rng(0).integers(1, 1001, 5000)
    Answers(values=1 / ranks).save(Storage(tmp_path))
    answers = read_answers(Storage(tmp_path))
    assert np.round(1 / answers.values).astype(int).tolist() == ranks.tolist()
    assert (len(answers.labels), len(answers.true), len(answers.answered)) == (0, 0, 0)
    assert answers.card.matrix.shape == (0, 0)

"""The answers to a split, as a file."""

from pathlib import Path

import numpy as np
import pytest

from automl.storage.answers import ANSWERS_FILE, Answers, read_answers
from automl.storage.storage import Storage


@pytest.mark.parametrize(("count", "classes"), [(1, 1), (9, 3), (1000, 300)])
def test_what_is_written_is_read(count: int, classes: int, tmp_path: Path) -> None:
    true, answered = np.random.default_rng(count).integers(0, classes, (2, count))
    labels = [f"Klasse ä {i}" for i in range(classes)]
    values = (true == answered).astype(float)
    Answers(labels=labels, true=true, answered=answered, values=values).save(Storage(tmp_path))
    found = read_answers(Storage(tmp_path))
    assert found is not None
    assert found.labels == labels
    for ours, theirs in ((found.true, true), (found.answered, answered), (found.values, values)):
        assert ours.tolist() == theirs.tolist()
    assert found.card.matrix.sum() == count
    assert (tmp_path / ANSWERS_FILE).stat().st_size < 1500 + 4 * count + 10 * classes


def test_none_that_can_be_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert read_answers(Storage(tmp_path)) is None
    assert not caplog.records
    (tmp_path / ANSWERS_FILE).write_bytes(b"PK\x03\x04 cut off")
    assert read_answers(Storage(tmp_path)) is None
    assert "answers.npz of" in caplog.text

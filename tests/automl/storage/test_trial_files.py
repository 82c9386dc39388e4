"""Files beside a checkpoint: answers, and progress within an epoch."""

from pathlib import Path

import numpy as np
import pytest

from automl.storage import trial_files
from automl.storage.storage import Storage
from automl.storage.trial_files import (
    ANSWERS_FILE,
    PROGRESS_FILE,
    Answers,
    EpochProgress,
    read_answers,
    read_part,
)


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


def test_answers_are_read_or_missing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert read_answers(Storage(tmp_path)) is None
    assert not caplog.records
    (tmp_path / ANSWERS_FILE).write_bytes(b"PK\x03\x04 cut off")
    assert read_answers(Storage(tmp_path)) is None
    assert "answers.npz of" in caplog.text
    ranks = np.random.default_rng(0).integers(1, 1001, 5000)
    Answers(values=1 / ranks).save(Storage(tmp_path))
    answers = read_answers(Storage(tmp_path))
    assert np.round(1 / answers.values).astype(int).tolist() == ranks.tolist()
    assert (len(answers.labels), len(answers.true), len(answers.answered)) == (0, 0, 0)
    assert answers.card.matrix.shape == (0, 0)


def test_steps_are_written_during_an_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_files, "PROGRESS_PERIOD", 0.0)
    folder = Storage(tmp_path / "trial")
    with EpochProgress(folder) as tell:
        assert read_part(folder, after=0) is None
        tell(1, 3, 10)
        assert read_part(folder, after=0) == 0.3
        assert read_part(folder, after=1) is None, "which has ended"
        (tmp_path / "trial" / PROGRESS_FILE).write_text("{")
        assert read_part(folder, after=0) is None
    assert not (tmp_path / "trial").exists()
    monkeypatch.setattr(trial_files, "PROGRESS_PERIOD", 0.0)
    (tmp_path / "trial").touch()
    with EpochProgress(Storage(tmp_path / "trial")) as tell:
        tell(1, 1, 10)

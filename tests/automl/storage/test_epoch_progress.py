"""Progress of a trial within a long epoch."""

from pathlib import Path

import pytest

from automl.storage import trial_files
from automl.storage.storage import Storage
from automl.storage.trial_files import PROGRESS_FILE, EpochProgress, read_part


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


def test_write_errors_are_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_files, "PROGRESS_PERIOD", 0.0)
    (tmp_path / "trial").touch()
    with EpochProgress(Storage(tmp_path / "trial")) as tell:
        tell(1, 1, 10)

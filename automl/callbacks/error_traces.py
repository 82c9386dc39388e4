"""Writes the traceback of each failed trial to a file."""

from pathlib import Path

from search.callback import Callback
from search.record import TrialRecord


class ErrorTraces(Callback):
    """Keeps the traceback of a trial that failed beside its checkpoint, in `error.txt`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_trial_end(self, trial: TrialRecord) -> None:
        if trial.traceback:
            trial_folder = self.folder / trial.folder
            trial_folder.mkdir(parents=True, exist_ok=True)
            (trial_folder / "error.txt").write_text(trial.traceback)

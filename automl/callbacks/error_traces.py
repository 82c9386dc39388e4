"""Write the traceback of each failed trial to a file."""

from pathlib import Path

from search.callback import Callback
from search.record import TrialRecord


class ErrorTraces(Callback):
    """Write the traceback of a failed trial to `error.txt` beside its checkpoint."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_trial_end(self, trial: TrialRecord) -> None:
        if trial.traceback:
            folder = self.folder / trial.folder
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "error.txt").write_text(trial.traceback)

"""Write the scores of trials for TensorBoard."""

from pathlib import Path
from typing import Any

from attention import InputError
from search.callback import Callback, SearchRecord
from search.record import TrialRecord

LONGEST = 100  # characters of the name of a run


class TensorBoard(Callback):
    """Write one TensorBoard run for each trial: the metrics of each epoch, and the configuration.

    Needs the package `tensorboard`. View the runs with `tensorboard --logdir searches/NAME/tensorboard`.

    Args:
        folder: Folder of the runs. Default: `tensorboard` in the folder of the search.

    Raises:
        InputError: `tensorboard` is not installed.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise InputError("--callback tensorboard needs TensorBoard: pip install tensorboard") from error
        self._open: Any = SummaryWriter
        self.custom_folder = None if folder is None else Path(folder)
        self.folder: Path | None = None
        self._writers: dict[str, Any] = {}

    def on_search_start(self, search: SearchRecord) -> None:
        self.folder = self.custom_folder or search.folder / "tensorboard"

    on_confirmation_start = on_search_start

    def on_trial_start(self, trial: TrialRecord) -> None:
        assert self.folder is not None, "the search or confirmation has started"
        name = trial.name.replace("/", "_")[:LONGEST]
        # A restarted trial repeats its last epochs, which replace the written ones.
        self._writers[trial.name] = self._open(str(self.folder / name), purge_step=trial.epoch + 1)

    def on_epoch_end(self, trial: TrialRecord) -> None:
        writer = self._writers[trial.name]
        for name, value in trial.history[-1].items():
            writer.add_scalar(name, value, trial.epoch)

    def on_trial_end(self, trial: TrialRecord) -> None:
        writer = self._writers.pop(trial.name, None)
        if writer is not None:
            writer.add_text("state", f"{trial.state} {trial.reason or ''}".strip())
            writer.add_text("configuration", str(trial.config.to_json()))
            writer.close()

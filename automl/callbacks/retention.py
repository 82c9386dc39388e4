"""Files of trials: delete checkpoints that are not among the best, and write tracebacks of errors."""

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from automl.storage.storage import Storage
from search.record import CHECKPOINT_FILE, Callback, State, TrialRecord
from search.trial_scheduler import Plan, rank_trials, select_leaders

log = logging.getLogger("automl")


class CheckpointRetention(Callback):
    """Callback that deletes the checkpoints of ended trials that are not among the best.

    Args:
        keep: Number of best trials to keep.
        deleted: Function that is called with each trial whose checkpoint was deleted.
    """

    def __init__(
        self,
        location: Storage,
        plan: Plan,
        records: Iterable[TrialRecord],
        *,
        keep: int,
        deleted: Callable[[TrialRecord], None] = lambda trial: None,
    ) -> None:
        # Deleting in an object store is slow, so it runs in a thread.
        self.later = ThreadPoolExecutor(1) if location.local is None else None
        self.location, self.plan, self.keep, self.deleted = location, plan, keep, deleted
        # Ended trials that may have a checkpoint. A deleted one is never needed again.
        self.held = {record.number: record for record in records if record.state is not State.RUNNING}

    def on_trial_end(self, trial: TrialRecord) -> None:
        self.held[trial.number] = trial
        stay = {record.number for record in self.staying()}
        for number in self.held.keys() - stay:
            record = self.held.pop(number)
            if self.later is None:
                self._remove(record, trial)
            else:
                self.later.submit(self._remove, record, trial)

    def _remove(self, record: TrialRecord, ended: TrialRecord) -> None:
        try:
            (self.location / record.folder).remove(CHECKPOINT_FILE)
        except FileNotFoundError:
            return
        except OSError as error:
            # Do not end the search, which would stop all running trials.
            log.warning("the checkpoint in %s cannot be deleted: %s", self.location / record.folder, error)
            return
        if record is not ended:
            self.deleted(record)

    def staying(self) -> list[TrialRecord]:
        """Return the ended trials whose checkpoints are kept."""
        done = [record for record in self.held.values() if record.state is State.COMPLETE]
        done.sort(key=lambda record: record.number)
        _, baseline = select_leaders(done, self.plan)
        return [*rank_trials(done, self.plan)[: self.keep], *([baseline] if baseline else [])]


class ErrorTraces(Callback):
    """Write the traceback of a failed trial to `error.txt` beside its checkpoint."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_trial_end(self, trial: TrialRecord) -> None:
        if trial.traceback:
            folder = self.folder / trial.folder
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "error.txt").write_text(trial.traceback)

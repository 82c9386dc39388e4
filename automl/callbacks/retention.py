"""Deletes checkpoints, except those of the best trials, the best baseline and running trials."""

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from automl.storage.storage import Storage
from search.callback import Callback
from search.halving import dominates
from search.record import CHECKPOINT_FILE, State, TrialRecord
from search.trial_scheduler import Plan, select_leaders

log = logging.getLogger("automl")

# What one and the same model's differs by when it is measured again, as a part of it: no reason to leave a
# front. The others are counted.
NOISE = {"latency": 0.02, "time_ratio": 0.02}


class CheckpointRetention(Callback):
    """A callback that deletes the checkpoints of ended trials that are not among the best.

    keep: how many of the best are kept. With several objectives, the whole Pareto front is.
    deleted: called with each trial whose checkpoint was deleted.
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
        # An object store takes its time to delete; the search does not wait for it.
        self.later = ThreadPoolExecutor(1) if location.local is None else None
        self.location, self.plan, self.keep, self.deleted = location, plan, keep, deleted
        # The ended trials that may have a checkpoint: what once went is never wanted again.
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
            # It costs disk space; ending the search would cost all running trials.
            log.warning("the checkpoint in %s cannot be deleted: %s", self.location / record.folder, error)
            return
        if record is not ended:
            self.deleted(record)

    def staying(self) -> list[TrialRecord]:
        """Return the ended trials whose checkpoints are kept."""
        done = [record for record in self.held.values() if record.state is State.COMPLETE]
        leading, baseline = select_leaders(sorted(done, key=lambda r: r.number), self.plan)
        if len(self.plan.objectives) > 1:  # the front, or what leads where all may be guessing
            best = front(done, self.plan) or [record for record in [leading] if record]
        else:
            best = sorted(done, key=self._rank)[: self.keep]
        return [*best, *([baseline] if baseline else [])]

    def _rank(self, record: TrialRecord) -> tuple[bool, float, int]:
        """Return the sort key of a trial. Of equal trials the first one leads, as in `select_leaders`."""
        return self.plan.guesses(record), -self.plan.signed_value(record), record.number


def front(records: Iterable[TrialRecord], plan: Plan) -> list[TrialRecord]:
    """Return the finished trials that no other one dominates by more than noise, by number.

    What may have learned nothing is cheap for no reason, and is on none.
    """
    done = [record for record in records if record.state is State.COMPLETE and not plan.guesses(record)]
    scores = {record.number: plan.score(record) for record in done}
    noise = [NOISE.get(name, 0.0) for name in plan.objectives]
    return [
        record
        for record in sorted(done, key=lambda r: r.number)
        if not any(dominates(scores[other.number], scores[record.number], noise) for other in done)
    ]

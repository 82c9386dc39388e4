"""Callback that mirrors trials as MLflow runs, without blocking training.

MLflow has a copy of the search's study, which is the original. A thread updates the runs, so training never
waits for MLflow. Failed writes are retried. Missing runs can be written from the study later (`automl sync`).
"""

import copy
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, Protocol

from automl.base.errors import InputError
from automl.base.terminal import tell
from search.record import Callback, State, TrialRecord

log = logging.getLogger("mlflow")

PATIENCE = 30.0  # maximum wait for the last writes of a search [s]
PAUSE = (1.0, 30.0)  # first and longest pause between two attempts [s]


class Writes(Protocol):
    """Interface of `MlflowWriter` for a tracker, possibly in another process. Methods raise its errors."""

    def runs(self) -> dict[int, str]: ...
    def read_runs(self) -> None: ...
    def write(self, trial: TrialRecord) -> str: ...
    def finish(
        self, best: TrialRecord | None, metric: str | None, counts: Mapping[State, int], stopped: bool
    ) -> None: ...
    def conclude(self, identity: str, verdict: Mapping[str, Any], winner: str | None) -> None: ...


class Tracker(Callback):
    """Callback that mirrors each trial as a run.

    If the server does not answer at the start, print a warning and continue without it. Without `at_once`,
    the first trial asks the server first, and the end says how many trials it does not have. Nothing is
    written in the first `delay` seconds.

    Attributes:
        runs: ID of the MLflow run of each trial.
        silent: True if MLflow did not answer the last call in time.
    """

    def __init__(self, writer: Writes, *, at_once: bool = True, delay: float = 0.0) -> None:
        self.writer, self._delay, self._begun = writer, delay, False
        self.runs: dict[int, str] = {}
        self.silent = False
        try:
            self.runs = writer.runs() if at_once else {}
        except MlflowSilent as error:
            self.silent = True
            tell(f"warning: {error}. Training continues without it, and its runs are written when it answers")
        # What is to be mirrored, newest state alone; the lock guards it, and wakes the thread.
        self._wanted: dict[int, TrialRecord] = {}
        self._news = threading.Condition()
        self._busy: set[int] = set()  # the trial that the thread is at
        self._closed = False
        self._pause = 0.0
        self._hurry = False  # somebody waits, so the pause is over
        self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)
        self._thread.start()

    def update(self, trial: TrialRecord) -> None:
        """Update the trial's run in MLflow."""
        now = copy.copy(trial)
        now.history = list(trial.history)
        with self._news:
            self._wanted[trial.number] = now
            self._news.notify_all()

    on_trial_start = on_epoch_end = on_trial_end = update  # which records the change and returns

    # The thread.

    def _work(self) -> None:
        with self._news:
            self._news.wait_for(lambda: self._closed or self._hurry, self._delay)
            self._begun = not self._closed
        while True:
            with self._news:
                self._busy.clear()
                self._news.notify_all()
                while not self._wanted and not self._closed:
                    self._news.wait()
                if not self._wanted:
                    return
                number = next(iter(self._wanted))
                trial = self._wanted.pop(number)
                self._busy.add(number)
            try:
                self.runs[number] = self.writer.write(trial)
                self._pause, self.silent = 0.0, False
            except Exception as error:
                self.silent = isinstance(error, MlflowSilent)
                if not self._pause:
                    log.warning("MLflow did not take a write, which is tried again: %s", error)
                first, longest = PAUSE
                self._pause = min(max(first, 2 * self._pause), longest)
                with self._news:
                    self._wanted.setdefault(number, trial)  # unless there is something newer
                    self._busy.clear()
                    self._news.notify_all()
                    if self._closed:
                        return
                    self._news.wait_for(lambda: self._closed or self._hurry, timeout=self._pause)
                    if self._hurry:
                        self._hurry, self._pause = False, first
                try:  # look again what it has
                    self.writer.read_runs()
                except Exception as error:
                    log.warning("MLflow does not answer: %s", error)

    # The end.

    def postpone(self) -> bool:
        """End the thread if nothing was written yet. Return True if so."""
        with self._news:
            if not self._begun:
                self._closed = True
                self._wanted.clear()
                self._news.notify_all()
            return self._closed

    def drain(self, patience: float = PATIENCE) -> int:
        """Wait until everything is mirrored, at most `patience` seconds. Return how many are missing."""
        with self._news:
            self._hurry = True
            self._news.notify_all()
            self._news.wait_for(lambda: self.silent or not (self._wanted or self._busy), patience)
            return len(self._wanted.keys() | self._busy)

    def close(self, patience: float = PATIENCE) -> int:
        """Call `drain` and end the thread."""
        missing = self.drain(patience)
        with self._news:
            self._closed = True
            self._wanted.clear()
            self._news.notify_all()
        return missing

    def finish(
        self,
        *,
        best: TrialRecord | None,
        metric: str | None,
        counts: Mapping[State, int],
        stopped: bool = False,
        patience: float = PATIENCE,
    ) -> int:
        """End the run of the search.

        Args:
            best: The best trial.
            metric: As in `MlflowWriter.finish`.
            counts: Number of trials in each state.
            stopped: True if the search was interrupted. Its running trials are marked as stopped.
            patience: Maximum wait [s].

        Returns:
            The number of trials that MLflow does not have completely. If it is not 0, the search is
            incomplete in MLflow until `automl sync`.
        """
        until = time.monotonic() + patience
        missing = self.close(patience)
        if self.silent or self._busy:  # it would be silent again
            return max(1, missing)
        ended = self._insist(lambda: self.writer.finish(best, metric, counts, stopped), "end", until)
        return missing if ended else max(1, missing)

    def conclude(self, identity: str, verdict: Mapping[str, Any], winner: str | None) -> int:
        """Write a verdict to the runs of the search and the confirmation. Return 1 if that failed, else 0."""
        until = time.monotonic() + PATIENCE
        if self.silent:
            return 1
        return not self._insist(lambda: self.writer.conclude(identity, verdict, winner), "verdict", until)

    def _insist(self, write: Callable[[], None], what: str, until: float) -> bool:
        """Call `write` until it succeeds or time is up, at least once."""
        pause, longest = PAUSE
        while True:
            try:
                write()
                return True
            except Exception as error:
                if time.monotonic() + pause > until:
                    log.warning("MLflow did not take the %s of the search: %s", what, error)
                    return False
            time.sleep(pause)
            pause = min(2 * pause, longest)


class MlflowSilent(InputError):
    """MLflow did not answer within the limit. A process that only writes to it continues without it."""


class SilentWriter:
    """Stands for a writer whose server was silent: every call raises that error."""

    def __init__(self, error: MlflowSilent) -> None:
        self.error = error

    def _raise(self, *arguments: object) -> NoReturn:
        raise self.error

    runs = read_runs = write = finish = conclude = _raise

"""Ray with capacity for trials of one shape, for the duration of a search or a confirmation.

Of Ctrl-C, SIGTERM and SIGHUP, the first stops the run gracefully, and the second at once.
"""

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from automl.base.atomic import STUDY_ROOM, format_disk_full, full_disk_errno
from automl.base.errors import InputError, error_message
from automl.base.process import capture_library_logs, handle_signals
from automl.callbacks.retention import ErrorTraces
from automl.callbacks.search_progress import Progress
from automl.config.nouns import Place
from automl.data import shared
from automl.storage.metadata import write_gpu_fraction
from automl.storage.storage import Storage
from automl.storage.trial_files import read_part
from automl.task import Split, Task
from automl.trials.measurements import find_fraction, trial_resources
from automl.trials.multi_worker import PLACEMENT_LIMIT, RAY, make_trainable
from automl.trials.trial import Trainings, TrialActor, build_assignment, make_sender
from cluster.connect import ClusterCapacity, connect, joins_cluster, list_nodes, wait_for_capacity, watch_head
from cluster.resources import TrialResources, count_slots
from search.record import TRIALS_FOLDER, Callback, TrialRecord
from search.study import STUDY_FILE
from search.trial_scheduler import TrialScheduler
from search.tuner import run_trials

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(SystemExit):
    """A signal stopped the process gracefully. Exits with 128 plus the signal's number."""

    def __init__(self, signal: int) -> None:
        super().__init__(128 + signal)


class Interrupt:
    """Record of the first signal received. Calling it returns whether there was one.

    Attributes:
        signal: Number of the first signal, or None.
    """

    def __init__(self) -> None:
        self.signal: int | None = None

    def __call__(self) -> bool:
        return self.signal is not None


@contextmanager
def record_signals(advice: str) -> Iterator[Interrupt]:
    """Record a first signal of `SIGNALS` inside the block. At a second one, print `advice` and exit.

    All results so far are already on disk.
    """
    interrupt = Interrupt()

    def record(number: int, frame: FrameType | None) -> None:
        if interrupt.signal is None:
            interrupt.signal = number
            with suppress(OSError):  # the terminal is closed
                print("stopping; once more to stop at once", file=sys.stderr, flush=True)
        else:
            _exit(advice, number)

    kept = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set()  # by nohup
    with handle_signals({number: record for number in SIGNALS if number not in kept}):
        yield interrupt


@dataclass(frozen=True, kw_only=True)
class Workers:
    """Resources that trials run on.

    Attributes:
        advice: How to resume the run if something ends it.
    """

    place: Place
    shape: TrialResources
    capacity: ClusterCapacity
    interrupt: Interrupt
    advice: str

    @property
    def devices(self) -> float:
        """Return the number of devices (GPUs or cores) of one trial."""
        return self.shape.workers * (self.shape.gpus or self.shape.cpus)

    def share_gpus(
        self, folder: Path, gpus: float | None, trainings: Trainings, *, trials: int | None
    ) -> "Workers":
        """Return the workers with the fraction `gpus` of a GPU for each trial, and print it.

        It is measured once for a search, on a training of the baseline, and recorded in its `search.json` in
        `folder`. `trials` is their number, or None if only the time is limited. Raises InputError if the
        baseline does not fit into the requested fraction.
        """
        place = self.place
        if not self.shape.gpus:
            return self
        if gpus is None:
            fraction = find_fraction(place, self.shape, list_open_nodes(place), trainings, trials=trials)
            if fraction is None:
                return self
            print(f"gpus      {fraction}", file=sys.stderr)
            gpus = fraction.gpus
            write_gpu_fraction(folder, place.storage, gpus)
        else:
            print(f"gpus      {gpus:g} for each trial, as at the start of the search", file=sys.stderr)
        shape = replace(self.shape, gpus=gpus)
        return replace(self, shape=shape, capacity=ClusterCapacity(shape, place.concurrent))

    def run(
        self,
        scheduler: TrialScheduler,
        trainings: Trainings,
        *,
        folder: Path,
        callbacks: Sequence[Callback],
        summary: Callable[[], str],
        budget: float | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Run the scheduler's trials until it has no more or a signal is received.

        Args:
            scheduler: The scheduler of a search or a confirmation.
            trainings: What the trials have in common.
            folder: The folder for Tune's own files and error traces.
            callbacks: Called for each trial before the progress display and the error traces.
            summary: Returns the end of the progress line.
            budget: The time for the run, to show the time left [s].
            stop: Ends the run gracefully when it returns True.

        Raises:
            InputError: The study cannot be written, or there is no more capacity for a trial.
        """
        location = trainings.location
        progress = self._open_progress(scheduler, location, summary, budget)
        scheduler.callbacks = [*callbacks, progress, ErrorTraces(folder)]
        send = make_sender()

        def assign(record: TrialRecord) -> dict[str, Any]:
            return build_assignment(record.config, location / record.folder, trainings, send)

        def stops() -> bool:  # Called several times a second.
            progress.read_progress()
            return stop() or self.interrupt() or self.capacity.ended() is not None

        with self._report_full_disk(folder):
            self._tune(scheduler, folder, location, assign, stops)
        if (why := self.capacity.ended()) is not None:
            raise InputError(f"{why}. When there is capacity again, {self.advice}")

    def _open_progress(
        self, scheduler: TrialScheduler, location: Storage, summary: Callable[[], str], budget: float | None
    ) -> Progress:
        return Progress(
            scheduler.plan,
            scheduler.records,
            trials=lambda: scheduler.trials,
            summary=summary,
            budget=budget,
            part=lambda record: read_part(location / record.folder, after=record.epoch),
        )

    def _tune(
        self,
        scheduler: TrialScheduler,
        folder: Path,
        location: Storage,
        assign: Callable[[TrialRecord], Mapping[str, Any]],
        stops: Callable[[], bool],
    ) -> None:
        """Run trials with Ray Tune: on one worker in an actor that is reused, or in a function of several."""
        alone = self.shape.workers == 1
        (folder / TRIALS_FOLDER).mkdir(exist_ok=True)
        try:
            run_trials(
                TrialActor if alone else make_trainable(self.shape, location / RAY / "train"),
                scheduler,
                assign=assign,
                # A trial of several workers is a function that waits for them and needs no core. It takes a
                # little memory, since Ray does not schedule a trial without resources.
                resources=self.shape.bundle if alone else {"memory": 2.0**20},
                capacity=self.capacity,
                folder=folder / RAY,
                stop=stops,
            )
        finally:
            if location.local is None and not alone:
                with suppress(OSError):  # A few small files may remain.
                    (location / RAY).clear()

    @contextmanager
    def _report_full_disk(self, folder: Path) -> Iterator[None]:
        """Raise InputError inside the block if the study in `folder` cannot be written."""
        try:
            yield
        except Exception as error:
            code = full_disk_errno(error)
            if code is None and not _is_study(error):
                raise
            cause = error_message(error.__cause__ or error)
            full = cause if code is None else format_disk_full(folder, STUDY_ROOM, code)
            raise InputError(
                f"the study in {folder} cannot be written ({full}); free disk space, then {self.advice}"
            ) from error


@contextmanager
def open_workers(place: Place, log: Path, advice: str) -> Iterator[Workers]:
    """Connect to Ray with capacity for a trial and record signals, inside the block.

    Messages of libraries go to the file `log`. `advice` says how to resume the run if something ends it.
    Raises InputError if no trial fits. With `--concurrent`, trials wait for capacity instead.
    """
    with (
        capture_library_logs(log),
        connect(dashboard=place.workers_per_trial > 1),
        record_signals(advice) as interrupt,
        watch_head(partial(_report_lost_head, advice, interrupt)),
    ):
        node_resources = list_open_nodes(place)
        shape = trial_resources(place, node_resources)
        if place.concurrent is None:
            count_slots(shape, node_resources)
            wait_for_capacity(shape, PLACEMENT_LIMIT)
        capacity = ClusterCapacity(shape, place.concurrent)
        yield Workers(place=place, shape=shape, capacity=capacity, interrupt=interrupt, advice=advice)


def list_open_nodes(place: Place) -> list[Mapping[str, float]]:
    """Return the resources of each node that may run trials."""
    return [node.resources for node in list_nodes(place.shape.labels).values() if not node.draining]


def _exit(advice: str, number: int) -> NoReturn:
    with suppress(OSError):  # the terminal is closed
        print(advice, file=sys.stderr, flush=True)
    os._exit(128 + number)


def _report_lost_head(advice: str, interrupt: Interrupt, address: str) -> None:
    if interrupt.signal is not None:  # Slurm and systemd send it to Ray's processes, too
        _exit(advice, interrupt.signal)
    print(
        f"error: Ray's control process (GCS) at {address} has ended, which ends this one. Start the cluster "
        f"again if it is one; then {advice}",
        file=sys.stderr,
        flush=True,
    )


def share_data(task: Task, folder: Path, storage: str, *splits: Split) -> dict[str, Any] | None:
    """Copy the data to the storage if trials may run on machines without them. Otherwise return None."""
    name, root = task.shared_name(task.config), Storage(storage)
    if name is None or (root.local is not None and not joins_cluster()):
        return None
    return shared.publish(root, name, task.stored_files(splits), folder)


def delete_tune_files(folder: Path) -> None:
    """Delete Tune's files."""
    shutil.rmtree(folder / RAY, ignore_errors=True)


def _is_study(error: BaseException) -> bool:
    """Return whether `error` means that the study could not be written."""
    if isinstance(error, OSError) and str(error.filename).endswith(STUDY_FILE):
        return True
    return error.__cause__ is not None and _is_study(error.__cause__)

"""Workers that run the trials of a search or a confirmation, and the signals of their run.

Commands that use one machine run in a pool of their own. A thread waits for each, and `supervise` ends its
processes once this one is gone, even by SIGKILL. All other trials run on Ray (`ray_workers`).

Of Ctrl-C, SIGTERM and SIGHUP, the first stops the run gracefully, and the second at once.
"""

import os
import queue
import shutil
import signal
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from automl.base.atomic import STUDY_ROOM, format_disk_full, full_disk_errno
from automl.base.errors import InputError, error_message
from automl.base.lazy import resolve
from automl.base.process import capture_library_logs, count_cores, handle_signals, may_have_gpu
from automl.callbacks.retention import ErrorTraces
from automl.callbacks.search_progress import Progress
from automl.config.nouns import Place
from automl.storage.storage import Storage
from automl.storage.trial_files import read_part
from automl.trials.job import Interrupted, Job, Trainings, classify_error, train
from cluster.resources import count_slots, joins_cluster
from search.record import TRIALS_FOLDER, Callback, Report, TrialRecord
from search.study import STUDY_FILE
from search.trial_scheduler import TrialScheduler

if TYPE_CHECKING:
    from automl.task import Split, Task

POLL = 0.2  # time between two looks at signals and progress [s]
LIMIT = 5.0  # time for commands to end after they were stopped [s]
RAY = "ray"  # folder for the own files of Ray Tune and Ray Train

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(SystemExit):
    """A signal stopped the process gracefully. Exits with 128 plus the signal's number."""

    def __init__(self, signal: int) -> None:
        super().__init__(128 + signal)


@dataclass
class Interrupt:
    """Record of the first signal received.

    Attributes:
        signal: Its number, or None.
        waits: True once trials run, which a signal ends in order. Before, it ends the run at once.
    """

    signal: int | None = None
    waits: bool = False


@contextmanager
def record_signals(advice: str) -> Iterator[Interrupt]:
    """Record a first signal of `SIGNALS` inside the block. At a second one, print `advice` and exit.

    All results so far are already on disk. While no trial runs yet, the first one raises Stopped.
    """
    interrupt = Interrupt()

    def record(number: int, frame: FrameType | None) -> None:
        if interrupt.signal is not None:
            exit_now(advice, number)
        interrupt.signal = number
        what = "stopping; once more to stop at once" if interrupt.waits else f"stopping; {advice}"
        with suppress(OSError):  # the terminal is closed
            print(what, file=sys.stderr, flush=True)
        if not interrupt.waits:
            raise Stopped(number)

    kept = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set()  # by nohup
    with handle_signals({number: record for number in SIGNALS if number not in kept}):
        yield interrupt


@dataclass(frozen=True, kw_only=True)
class Workers(ABC):
    """Resources that trials run on.

    Attributes:
        advice: How to resume the run if something ends it.
    """

    place: Place
    interrupt: Interrupt
    advice: str

    def share_gpus(
        self, folder: Path, gpus: float | None, trainings: Trainings, *, trials: int | None
    ) -> "Workers":
        """Return the workers with the fraction `gpus` of a GPU for each trial, and print it.

        It is measured once for a search, on a training of the baseline, and recorded in its `search.json` in
        `folder`. `trials` is their number, or None if only the time is limited. Raises InputError if the
        baseline does not fit into the requested fraction.
        """
        return self

    @property
    @abstractmethod
    def devices(self) -> float:
        """Return the number of devices (GPUs or cores) of one trial."""

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
        progress = Progress(
            scheduler.plan,
            scheduler.records,
            trials=lambda: scheduler.trials,
            summary=summary,
            budget=budget,
            part=lambda record: read_part(location / record.folder, after=record.epoch),
        )
        scheduler.callbacks = [*callbacks, progress, ErrorTraces(folder)]

        def stops() -> bool:  # Called several times a second.
            progress.read_progress()
            return stop() or self.interrupt.signal is not None

        (folder / TRIALS_FOLDER).mkdir(exist_ok=True)
        self.interrupt.waits = True
        with self._report_full_disk(folder):
            self._run(scheduler, trainings, folder, stops)

    @abstractmethod
    def _run(
        self, scheduler: TrialScheduler, trainings: Trainings, folder: Path, stop: Callable[[], bool]
    ) -> None:
        """Run the trials until there are no more, or `stop` returns True."""

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


@dataclass(frozen=True, kw_only=True)
class Pool(Workers):
    """The cores of this machine, for `slots` commands at once."""

    slots: int

    @property
    def devices(self) -> float:
        """Return the number of cores of one command."""
        return self.place.shape.cpus

    def _run(
        self, scheduler: TrialScheduler, trainings: Trainings, folder: Path, stop: Callable[[], bool]
    ) -> None:
        ended: queue.SimpleQueue[tuple[int, Report]] = queue.SimpleQueue()
        running: dict[int, threading.Thread] = {}
        readable, writable = os.pipe()

        def start(record: TrialRecord) -> None:
            job = Job(
                config=record.config,
                runtime=None,
                folder=trainings.location / record.folder,
                threads=max(1, int(self.place.shape.cpus)),
                stop=readable,
            )
            thread = threading.Thread(target=_train, args=(record.number, job, ended), daemon=True)
            running[record.number] = thread
            thread.start()

        try:
            # Until the study is open, its first command runs already. If this process is killed, the command
            # is the first one again, and finds what it has written.
            is_over, is_ahead = False, (first := scheduler.first()) is not None
            if first is not None:
                start(first)
            while not (stop() or scheduler.repeated_failure):
                while not is_over and len(running) < self.slots + is_ahead:
                    if (record := scheduler.ask()) is None:
                        is_over = not scheduler.waiting
                        break
                    if not is_ahead:
                        start(record)
                    is_ahead = False
                    scheduler.started(record.number)
                if not running:
                    return
                with suppress(queue.Empty):
                    number, report = ended.get(timeout=POLL)
                    if report.fault is not None:
                        raise InputError(f"{report.fault}; then {self.advice}")
                    del running[number]
                    scheduler.end(number, report)
        finally:
            os.close(writable)
            for thread in running.values():
                thread.join(LIMIT)
            if not any(thread.is_alive() for thread in running.values()):
                os.close(readable)


def _train(number: int, job: Job, ended: "queue.SimpleQueue[tuple[int, Report]]") -> None:
    """Run a command, and put its number and its report into `ended`, unless it was stopped."""
    try:
        for history in train(job):
            ended.put((number, Report(history=history, finished=True)))
    except Interrupted:
        pass
    except (Exception, SystemExit) as error:
        ended.put((number, classify_error(error, job.folder)))


def suffices(place: Place) -> bool:
    """Return True if commands need no Ray: no cluster, GPU, label or resource is asked for, or present."""
    shape = place.shape
    ray = sys.modules.get("ray")
    if joins_cluster() or (ray is not None and ray.is_initialized()):
        return False
    if shape.custom or shape.labels or shape.workers > 1 or shape.gpus:
        return False
    return place.gpus_per_trial is not None or not may_have_gpu()


@contextmanager
def open_workers(place: Place, log: Path, advice: str, *, commands: bool = False) -> Iterator[Workers]:
    """Yield workers for trials, or for `commands`, and record signals inside the block.

    Messages of libraries go to the file `log`. `advice` says how to resume the run if something ends it.
    Raises InputError if no trial fits. With `--concurrent`, trials on a cluster wait for capacity instead.
    """
    if not (commands and suffices(place)):
        with resolve("automl.trials.ray_workers:open_workers")(place, log, advice) as workers:  # imports Ray
            yield workers
        return
    slots = count_slots(place.shape, [{"CPU": count_cores()}])
    slots = slots if place.concurrent is None else min(slots, place.concurrent)
    with capture_library_logs(log), record_signals(advice) as interrupt:
        yield Pool(place=place, interrupt=interrupt, advice=advice, slots=slots)


def exit_now(advice: str, number: int) -> NoReturn:
    with suppress(OSError):  # the terminal is closed
        print(advice, file=sys.stderr, flush=True)
    os._exit(128 + number)


def share_data(task: "Task", folder: Path | None, storage: str, *splits: "Split") -> dict[str, Any] | None:
    """Copy the data to the storage if trials may run on machines without them. Otherwise return None.

    A dry run has no `folder`.
    """
    from automl.data import shared

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

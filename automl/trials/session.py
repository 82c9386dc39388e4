"""Ray with capacity for trials of one shape, for as long as a search or a confirmation takes."""

import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from attention import InputError
from automl.callbacks.error_traces import ErrorTraces
from automl.callbacks.prometheus import PrometheusGauges
from automl.callbacks.search_progress import Progress
from automl.config.limits import Limits
from automl.config.settings import Settings
from automl.storage.disk import STUDY_ROOM, disk_full, no_room
from automl.storage.epoch_progress import read_part
from automl.storage.folder import SearchMetadata
from automl.storage.logs import capture_library_logs
from automl.storage.storage import Storage
from automl.tasks import Split, Task
from automl.trials.interrupt import Interrupt, interrupts
from automl.trials.multi_worker import multi_worker_trial
from automl.trials.trial import TrialActor, assignment
from cluster.capacity import ClusterCapacity
from cluster.connect import connect, joins_cluster, list_nodes, wait_for_capacity
from cluster.head import watch_head
from cluster.resources import TrialResources, count_slots
from search.callback import Callback
from search.config import TrialConfig
from search.record import SHARED_FOLDER, TRIALS_FOLDER
from search.study import STUDY_FILE
from search.trial_scheduler import TrialScheduler
from search.tuner import run_trials

RAY = "ray"  # the folder for what Tune and Train write for themselves
PLACEMENT_LIMIT = 300.0  # seconds to wait for capacity for the first trial


@dataclass(frozen=True, kw_only=True)
class Workers:
    """Where trials run.

    shape: of a trial. capacity: for trials. advice: how to resume it when something ends it.
    """

    settings: Settings
    shape: TrialResources
    capacity: ClusterCapacity
    interrupt: Interrupt
    advice: str

    @property
    def devices(self) -> float:
        """That a trial takes, each a `device`."""
        return self.shape.workers * (self.shape.gpus or self.shape.cpus)

    @property
    def device(self) -> str:
        return "GPU" if self.shape.gpus else "core"

    def run(
        self,
        scheduler: TrialScheduler,
        *,
        name: str,
        folder: Path,
        location: Storage,
        callbacks: Sequence[Callback],
        summary: Callable[[], str],
        baseline: TrialConfig,
        best: bool,
        limits: Limits = Limits(),  # noqa: B008 (it is frozen)
        test: bool = False,
        data: Mapping[str, Any] | None = None,
        budget: float | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Run the scheduler's trials until it has no more or a signal comes.

        Args:
            scheduler: The scheduler of a search or a confirmation.
            name: The name for Prometheus.
            folder: The folder for Tune's own files and error traces.
            location: The storage below which checkpoints go.
            callbacks: Called for each trial before the progress display, the gauges and the error traces.
            summary: Makes the end of the progress line.
            best: True if the best trial gets a gauge.
            baseline, limits, test, data: As in `automl.trials.trial.assignment`.
            budget: Seconds, for the time left.
            stop: Ends the run gracefully when it returns True.

        Raises:
            InputError: The study cannot be written, or there is no more capacity for a trial.
        """
        alone = self.shape.workers == 1
        (folder / TRIALS_FOLDER).mkdir(exist_ok=True)
        progress = Progress(
            scheduler.plan,
            scheduler.records,
            trials=lambda: scheduler.trials,
            summary=summary,
            budget=budget,
            devices=self.devices,
            device=self.device,
            part=lambda record: read_part(location / record.folder, after=record.epoch),
        )
        gauges = PrometheusGauges(
            name,
            scheduler.records,
            scheduler.plan if best else None,
            slots=self.capacity.slots,
            devices=self.devices,
            device=self.device,
        )
        scheduler.callbacks = [*callbacks, progress, gauges, ErrorTraces(folder)]

        def stops() -> bool:  # asked several times a second
            progress.read_progress()
            return stop() or self.interrupt() or self.capacity.ended() is not None

        try:
            with progress:
                run_trials(
                    TrialActor if alone else multi_worker_trial(self.shape, location / RAY / "train"),
                    scheduler,
                    assign=lambda record: assignment(
                        record.config,
                        location / record.folder,
                        shared_trainings=location / SHARED_FOLDER,
                        baseline=baseline,
                        equal=self.settings.equal,
                        limits=limits,
                        precision=self.settings.precision,
                        compile=self.settings.compile,
                        test=test,
                        data=data,
                    ),
                    # A trial of several workers is a function that waits for them and takes no core of
                    # theirs; it takes a little memory, since Ray places nothing that takes nothing.
                    resources=self.shape.bundle if alone else {"memory": 2.0**20},
                    capacity=self.capacity,
                    folder=folder / RAY,
                    stop=stops,
                )
        except Exception as error:
            code = no_room(error)
            if code is None and not _is_study(error):
                raise
            full = _first_line(error) if code is None else disk_full(folder, STUDY_ROOM, code)
            raise InputError(
                f"the study in {folder} cannot be written ({full}); free disk space, then {self.advice}"
            ) from error
        finally:
            if location.local is None and not alone:
                with suppress(OSError):  # a few small files stay
                    (location / RAY).clear()
        if (why := self.capacity.ended()) is not None:
            raise InputError(f"{why}. When there is capacity again, {self.advice}")


@contextmanager
def open_workers(settings: Settings, log: Path, advice: str) -> Iterator[Workers]:
    """Inside the block there is Ray, with capacity for a trial as `settings` have it, and signals are noted.

    log: gets what the libraries say. Raises InputError when a trial cannot be placed; with `--concurrent`,
    capacity for it is what the trials wait for.
    """
    with (
        capture_library_logs(log),
        connect(dashboard=settings.workers_per_trial > 1),
        watch_head(partial(_tell_of_lost_head, advice)),
        interrupts(advice) as interrupt,  # after Ray, which takes SIGTERM for itself
    ):
        shape = settings.shape
        there = [node.resources for node in list_nodes(shape.labels).values() if not node.draining]
        if settings.gpus_per_trial is None and any(node.get("GPU") for node in there):
            shape = replace(shape, gpus=1)
        if settings.concurrent is None:
            count_slots(shape, there)
            wait_for_capacity(shape, PLACEMENT_LIMIT)
        capacity = ClusterCapacity(shape, settings.concurrent)
        yield Workers(settings=settings, shape=shape, capacity=capacity, interrupt=interrupt, advice=advice)


def _tell_of_lost_head(advice: str, address: str) -> None:
    print(
        f"error: Ray's control process (GCS) at {address} has ended, which ends this one. Start the cluster "
        f"again if it is one; then {advice}",
        file=sys.stderr,
        flush=True,
    )


def share_data(task: Task, folder: Path, metadata: SearchMetadata, *splits: Split) -> dict[str, Any] | None:
    """Share the data with trials that may run on machines without them."""
    if metadata.location.local is not None and not joins_cluster():
        return None
    return task.share_data(Storage(metadata.settings.storage), folder, splits)


def delete_tune_files(folder: Path) -> None:
    """Leave nothing of Tune's."""
    shutil.rmtree(folder / RAY, ignore_errors=True)


def _is_study(error: BaseException) -> bool:
    """The study could not be written."""
    if isinstance(error, OSError) and str(error.filename).endswith(STUDY_FILE):
        return True
    return error.__cause__ is not None and _is_study(error.__cause__)


def _first_line(error: BaseException) -> str:
    text = str(error.__cause__ or error).strip()
    return text.splitlines()[0] if text else type(error).__name__

"""Trains one configuration with several workers, without Tune: a TorchTrainer that this process starts."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from queue import Empty
from threading import Thread

import ray
import ray.train

from attention import InputError
from automl.config.device import is_gpu
from automl.config.limits import Limits
from automl.config.runtime import Runtime
from automl.storage.logs import capture_library_logs
from automl.storage.storage import Storage
from automl.training.loop import Diverged
from automl.trials.multi_worker import CHANNEL, NodeFault, causes_of, make_trainer
from automl.trials.trial import assignment
from cluster.connect import connect, joins_cluster, list_nodes, wait_for_capacity
from cluster.resources import TrialResources, count_slots
from search.config import TrialConfig
from search.record import SHARED_FOLDER, Metrics, Report

RAY = "ray"  # the folder for what Ray Train writes for itself
PLACEMENT_LIMIT = 300.0  # seconds to wait for capacity
POLL = 0.5  # seconds


def train_on_workers(
    config: TrialConfig, folder: Path, workers: int, runtime: Runtime, *, epoch: int = 0
) -> Iterator[Metrics]:
    """Train on workers of Ray, and yield the metrics of each epoch when its checkpoint is in `folder`.

    On a cluster, all workers must see `folder` and the data.
    epoch: the last one that the checkpoint there has.

    Raises Diverged, and InputError where there is no room for the workers or they cannot train.
    """
    with connect(dashboard=True), capture_library_logs(folder / "log.txt"):
        shape = worker_shape(workers, runtime)
        wait_for_capacity(shape, PLACEMENT_LIMIT)
        try:
            for report in _reports(config, folder, shape, runtime):
                for metrics in report.history[epoch:]:
                    yield {key: value for key, value in metrics.items() if key != "time"}
                epoch = max(epoch, len(report.history))
                if report.infeasible is not None:
                    raise Diverged(report.infeasible)
        finally:
            shutil.rmtree(folder / RAY, ignore_errors=True)
    (folder / "log.txt").unlink(missing_ok=True)


def worker_shape(workers: int, runtime: Runtime) -> TrialResources:
    """Return what each worker takes: a GPU, or an equal part of this machine's cores.

    Raises InputError where that does not fit.
    """
    there = [node.resources for node in list_nodes().values() if not node.draining]
    gpus = is_gpu(runtime.device) or (joins_cluster() and any(node.get("GPU") for node in there))
    cpus = 1 if joins_cluster() or gpus else max(1, (os.cpu_count() or 1) // workers)
    shape = TrialResources(cpus=cpus, gpus=int(gpus), workers=workers)
    count_slots(shape, there)
    return shape


def _reports(config: TrialConfig, folder: Path, shape: TrialResources, runtime: Runtime) -> Iterator[Report]:
    """Run the trainer in a thread, and yield what its first worker reports."""
    from ray.util.queue import Queue  # an actor, which needs a connected Ray

    location = Storage(str(folder))
    channel = Queue()
    sent = assignment(
        config,
        location,
        shared_trainings=location / SHARED_FOLDER,
        baseline=config,
        equal="epochs",
        limits=Limits(),
        precision=runtime.precision,
        compile=runtime.compile,
        profile=False,
    )
    trainer = make_trainer({**sent, CHANNEL: channel}, shape, location / RAY, name="train")
    errors: list[BaseException] = []

    def fit() -> None:
        try:
            trainer.fit()
        except BaseException as error:
            errors.append(error)

    # A daemon: after Ctrl-C, disconnecting from Ray ends the workers, and nobody waits for the thread.
    thread = Thread(target=fit, daemon=True)
    thread.start()
    while True:
        running = thread.is_alive()  # asked first, so that nothing which came before its end is lost
        try:
            yield channel.get(timeout=POLL)
        except Empty:
            if not running:
                break
    if errors:
        raise _explained(errors[0]) from errors[0]


def _explained(error: BaseException) -> BaseException:
    """Return the first worker's own error, where it says what to do."""
    if isinstance(error, ray.train.TrainingFailedError):
        for cause in causes_of(error):
            if isinstance(cause, NodeFault):
                return InputError(cause.fault)
            if isinstance(cause, InputError):
                return cause
    return error

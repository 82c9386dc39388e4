"""Trains one configuration with several workers, without Tune: a TorchTrainer that this process starts."""

import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from queue import Empty
from threading import Thread

import ray
import ray.train
from ray.exceptions import RayActorError

from automl.base.command_line import format_command
from automl.base.errors import InputError
from automl.config.device import is_gpu
from automl.config.limits import Limits
from automl.config.runtime import Runtime
from automl.storage.logs import capture_library_logs
from automl.storage.storage import Storage
from automl.training.loop import Diverged
from automl.trials.multi_worker import CHANNEL, NodeFault, list_causes, make_trainer
from automl.trials.trial import build_assignment
from cluster.connect import connect, joins_cluster, list_nodes, wait_for_capacity
from cluster.resources import TrialResources, count_slots
from search.config import TrialConfig
from search.record import SHARED_FOLDER, Metrics, Report

RAY = "ray"  # folder for Ray Train's own files
PLACEMENT_LIMIT = 300.0  # seconds to wait for capacity
POLL = 0.5  # time between two checks [s]


def train_on_workers(
    config: TrialConfig, folder: Path, workers: int, runtime: Runtime, *, epoch: int = 0
) -> Iterator[Metrics]:
    """Train on workers of Ray, and yield the metrics of each epoch after its checkpoint is in `folder`.

    On a cluster, all workers must have access to `folder` and the data.

    Args:
        config: The configuration.
        folder: The folder of the training.
        workers: Number of workers.
        runtime: Device and precision.
        epoch: Number of epochs that are in the checkpoint.

    Raises:
        Diverged: The loss or a metric is not finite.
        InputError: The workers do not fit or cannot train.
    """
    with connect(dashboard=True), capture_library_logs(folder / "log.txt"):
        shape = plan_resources(workers, runtime)
        wait_for_capacity(shape, PLACEMENT_LIMIT)
        try:
            for report in _reports(config, folder, shape, runtime):
                yield from report.history[epoch:]
                epoch = max(epoch, len(report.history))
                if report.infeasible is not None:
                    raise Diverged(report.infeasible)
        finally:
            shutil.rmtree(folder / RAY, ignore_errors=True)
    (folder / "log.txt").unlink(missing_ok=True)


def plan_resources(workers: int, runtime: Runtime) -> TrialResources:
    """Return the resources of the workers: a GPU each, or an equal number of this machine's cores.

    Raises:
        InputError: The workers do not fit.
    """
    node_resources = [node.resources for node in list_nodes().values() if not node.draining]
    gpus = is_gpu(runtime.device) or (joins_cluster() and any(node.get("GPU") for node in node_resources))
    cpus = 1 if joins_cluster() or gpus else max(1, (os.cpu_count() or 1) // workers)
    shape = TrialResources(cpus=cpus, gpus=int(gpus), workers=workers)
    count_slots(shape, node_resources)
    return shape


def _reports(config: TrialConfig, folder: Path, shape: TrialResources, runtime: Runtime) -> Iterator[Report]:
    """Run the trainer in a thread, and yield the reports of its first worker."""
    from ray.util.queue import Queue  # Imported here, as the queue is an actor, which needs a connected Ray.

    location = Storage(str(folder))
    channel = Queue()
    content = build_assignment(
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
    trainer = make_trainer({**content, CHANNEL: channel}, shape, location / RAY, name="train")
    errors: list[BaseException] = []

    def fit() -> None:
        try:
            trainer.fit()
        except BaseException as error:
            errors.append(error)

    # The thread is a daemon. After Ctrl-C, disconnecting from Ray ends the workers, and nothing waits for it.
    thread = Thread(target=fit, daemon=True)
    thread.start()
    while True:
        is_running = thread.is_alive()  # Checked first, so that reports sent before the end are not lost.
        try:
            yield channel.get(timeout=POLL)
        except Empty:
            if not is_running:
                break
    if errors:
        logging.getLogger("ray").error("%s", errors[0])
        raise _find_cause(errors[0], folder) from errors[0]


def _find_cause(error: BaseException, folder: Path) -> BaseException:
    """Return the worker's own error if its message says what to do, or InputError if its process died."""
    if isinstance(error, ray.train.TrainingFailedError):
        for cause in list_causes(error):
            if isinstance(cause, NodeFault):
                return InputError(cause.fault)
            if isinstance(cause, InputError):
                return cause
            if isinstance(cause, RayActorError):
                return InputError(
                    f"a process of the training was killed, as when its machine is out of memory. Ray's "
                    f"message is in {folder / 'log.txt'}. Continue it: "
                    f"{format_command('train --resume', folder.name, str(folder.parent))}"
                )
    return error

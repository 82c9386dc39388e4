"""Trainings on several devices: a TorchTrainer of Ray Train, inside a Tune function or without Tune.

Every worker trains its part of each batch. Batch norm, gradients and metrics are over all workers, so that a
trial is the same as with one worker. The Tune function only waits and takes no slot.
"""

import logging
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import Empty
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import ray
import ray.train
import ray.train.torch
import torch
from ray import tune
from ray.exceptions import RayActorError
from ray.train.torch import TorchConfig
from ray.tune.integration.ray_train import TuneReportCallback

from automl.base.errors import InputError
from automl.base.options import format_command
from automl.base.process import capture_library_logs, count_cores
from automl.config.device import device_for, is_gpu
from automl.config.nouns import Terms
from automl.config.runtime import Runtime, memory_fraction
from automl.storage.storage import Storage
from automl.training.loop import Diverged
from automl.trials.job import Trainings, classify_error
from automl.trials.session import RAY
from automl.trials.trial import build_assignment, train_trial
from cluster.connect import connect, list_nodes, use_node_address, wait_for_capacity
from cluster.resources import TrialResources, count_slots, joins_cluster
from search.config import TrialConfig
from search.record import Metrics, Report
from search.tuner import LABELS, NODE, REPORT, RETRIES

CHANNEL = "channel"  # key of the queue for the first worker's reports, in a training without Tune


class NodeBackend(TorchConfig().backend_cls):  # type: ignore[misc]
    """Backend whose workers talk through the network of their nodes."""

    def on_start(self, worker_group: Any, backend_config: TorchConfig) -> None:
        worker_group.execute(use_node_address)
        super().on_start(worker_group, backend_config)


class NodeTorch(TorchConfig):
    """Configuration of `NodeBackend`."""

    backend_cls = NodeBackend


def make_trainable(shape: TrialResources) -> Callable[[dict[str, Any]], None]:
    """Return the Tune function of trials of `shape`."""

    def trial(config: dict[str, Any]) -> None:
        name, labels = f"{config['number']:04d}", config[LABELS]
        try:
            # Ray Train has nothing to keep. A store may reject its markers of folders, or not answer.
            with TemporaryDirectory(dir=os.getcwd(), ignore_cleanup_errors=True) as folder:
                callbacks = [TuneReportCallback()]
                make_trainer(config, shape, folder, name=name, labels=labels, callbacks=callbacks).fit()
        except ray.train.TrainingFailedError as error:
            causes = list_causes(error)
            for cause in causes:
                if isinstance(cause, NodeFault):
                    tune.report({REPORT: Report(fault=cause.fault), NODE: cause.node})
                    return
            if any(isinstance(cause, RayActorError) for cause in causes):
                raise  # The death of a process is no fault of the trial.
            reason = str(error).strip().splitlines()[-1].strip()
            tune.report({REPORT: Report(error=reason, traceback=str(error))})

    return trial


def make_trainer(
    config: dict[str, Any],
    shape: TrialResources,
    folder: str,
    *,
    name: str,
    labels: Any = None,
    callbacks: Sequence[Any] = (),
) -> ray.train.torch.TorchTrainer:
    """Return the trainer of an assignment on nodes with `labels`.

    Its own files go to `folder`/`name` on the node from which it is started.
    """
    return ray.train.torch.TorchTrainer(
        run_worker,
        train_loop_config={**config, "cpus": shape.cpus, "gpus": shape.gpus},
        torch_config=NodeTorch(),
        scaling_config=ray.train.ScalingConfig(
            num_workers=shape.workers,
            use_gpu=shape.gpus > 0,
            resources_per_worker=shape.bundle,
            label_selector=labels,
            placement_strategy="PACK",
        ),
        run_config=ray.train.RunConfig(
            name=name,
            storage_path=folder,
            callbacks=list(callbacks),
            failure_config=ray.train.FailureConfig(max_failures=RETRIES),
        ),
    )


def list_causes(error: ray.train.TrainingFailedError) -> list[Exception]:
    """Return the error of each worker that failed."""
    return list(getattr(error, "worker_failures", {}).values())


def run_worker(config: dict[str, Any]) -> None:
    """Train in one worker. It resumes from the last checkpoint if it replaces a worker that died."""
    torch.set_num_threads(max(1, int(config["cpus"])))
    context = ray.train.get_context()
    device = device_for(config["gpus"])
    runtime = Runtime(
        device=ray.train.torch.get_device() if is_gpu(device) else device,
        memory_fraction=memory_fraction(config["gpus"]),
        rank=context.get_world_rank(),
        workers=context.get_world_size(),
        **config["runtime"],
    )
    try:
        for report in train_trial(config, runtime):
            if runtime.rank == 0 and CHANNEL in config:
                config[CHANNEL].put(report)
            ray.train.report({REPORT: report})
    except Exception as error:
        outcome = classify_error(error, Storage(config["folder"]))
        if outcome.fault is None:
            raise
        raise NodeFault(ray.get_runtime_context().get_node_id(), outcome.fault) from error


class NodeFault(Exception):
    """A worker cannot train on this node."""

    def __init__(self, node: str, fault: str) -> None:
        super().__init__(node, fault)
        self.node, self.fault = node, fault


PLACEMENT_LIMIT = 300.0  # seconds to wait for capacity for the first trial
POLL = 0.5  # time between two checks [s]


def train_on_workers(
    config: TrialConfig, folder: Path, workers: int, runtime: Runtime, *, epoch: int = 0
) -> Iterator[Metrics]:
    """Train on workers of Ray, and yield the metrics of each epoch after its checkpoint is in `folder`.

    On a cluster, all workers must have access to `folder` and the data. The checkpoint there, if any, has
    `epoch` epochs. Raises InputError if the workers do not fit or cannot train, and Diverged.
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
    """Return a GPU for each worker, or equal shares of the cores. Raises InputError if they do not fit."""
    node_resources = [node.resources for node in list_nodes().values() if not node.draining]
    gpus = is_gpu(runtime.device) or (joins_cluster() and any(node.get("GPU") for node in node_resources))
    cpus = 1 if joins_cluster() or gpus else max(1, count_cores() // workers)
    shape = TrialResources(cpus=cpus, gpus=int(gpus), workers=workers)
    count_slots(shape, node_resources)
    return shape


def _reports(config: TrialConfig, folder: Path, shape: TrialResources, runtime: Runtime) -> Iterator[Report]:
    """Run the trainer in a thread, and yield the reports of its first worker."""
    from ray.util.queue import Queue  # Imported here, as the queue is an actor, which needs a connected Ray.

    location = Storage(str(folder))
    channel = Queue()
    terms = Terms(equal="epochs", precision=runtime.precision, compile=runtime.compile)
    content = build_assignment(
        config, location, Trainings(location=location, baseline=config, terms=terms, profile=False)
    )
    trainer = make_trainer({**content, CHANNEL: channel}, shape, str(folder / RAY), name="train")
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

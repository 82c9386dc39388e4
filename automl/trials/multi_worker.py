"""One trial on several devices: a TorchTrainer of Ray Train inside a Tune function.

Every worker trains its part of each global batch. Batch norm, gradients and metrics are over all workers, so
that the trial is the same as with one worker. The Tune function only waits and takes no slot.
"""

from collections.abc import Callable, Sequence
from typing import Any

import ray.train
import ray.train.torch
import torch
from ray import tune
from ray.exceptions import RayActorError
from ray.tune.integration.ray_train import TuneReportCallback

from automl.config.device import device_for, is_gpu
from automl.config.runtime import Runtime, memory_fraction
from automl.storage.storage import Storage
from automl.trials.job import classify_error
from automl.trials.trial import train_trial
from cluster.resources import TrialResources
from search.record import Report
from search.tuner import LABELS, NODE, REPORT, RETRIES

CHANNEL = "channel"  # key of the queue for the first worker's reports, in a training without Tune


def make_trainable(shape: TrialResources, location: Storage) -> Callable[[dict[str, Any]], None]:
    """Return the Tune function of trials of `shape`. Ray Train writes its own files to `location`."""

    def trial(config: dict[str, Any]) -> None:
        trainer = make_trainer(
            config,
            shape,
            location,
            name=f"{config['number']:04d}",
            labels=config[LABELS],
            callbacks=[TuneReportCallback()],
        )
        try:
            trainer.fit()
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
    location: Storage,
    *,
    name: str,
    labels: Any = None,
    callbacks: Sequence[Any] = (),
) -> ray.train.torch.TorchTrainer:
    """Return the trainer of an assignment on workers of `shape`.

    Args:
        config: The assignment.
        shape: Resources of the workers.
        location: Folder for Ray Train's own files.
        name: Name of the run in that folder.
        labels: Labels of the nodes that workers may run on.
        callbacks: Callbacks of Ray Train.
    """
    files, path = location.filesystem
    return ray.train.torch.TorchTrainer(
        run_worker,
        train_loop_config={**config, "cpus": shape.cpus, "gpus": shape.gpus},
        scaling_config=ray.train.ScalingConfig(
            num_workers=shape.workers,
            use_gpu=shape.gpus > 0,
            resources_per_worker=shape.bundle,
            label_selector=labels,
            placement_strategy="PACK",
        ),
        run_config=ray.train.RunConfig(
            name=name,
            storage_path=path,
            storage_filesystem=files if location.local is None else None,
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

"""One trial on several devices: a TorchTrainer of Ray Train inside a Tune function.

Every worker trains its part of each global batch; batch norm, gradients and metrics are over all of
them, so that the trial is the same as with one worker. The Tune function only waits, and takes no slot.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray.train
import ray.train.torch
import torch
from ray.tune.integration.ray_train import TuneReportCallback

from automl import checkpoint
from automl.loop import fit, start
from automl.runtime import Runtime
from automl.tasks import open_task
from automl.trial import Verdict, granted, report
from cluster.resources import TrialResources
from search.config import TrialConfig
from search.searcher import INFEASIBLE

RETRIES = 3  # times that a dead worker is replaced


def multi_worker_trial(shape: TrialResources, folder: Path) -> Callable[[dict[str, Any]], None]:
    """The Tune function of trials of `shape`, whose checkpoints go below `folder`."""

    def trial(config: dict[str, Any]) -> None:
        ray.train.torch.TorchTrainer(
            worker,
            train_loop_config={**config, "cpus": shape.cpus, "gpus": shape.gpus},
            scaling_config=ray.train.ScalingConfig(
                num_workers=shape.workers,
                use_gpu=shape.gpus > 0,
                resources_per_worker={"CPU": shape.cpus, "GPU": shape.gpus},
                placement_strategy="PACK",
            ),
            run_config=ray.train.RunConfig(
                name=f"{config['number']:04d}",
                storage_path=str(folder),
                callbacks=[TuneReportCallback()],
                failure_config=ray.train.FailureConfig(max_failures=RETRIES),
                checkpoint_config=ray.train.CheckpointConfig(num_to_keep=1),
            ),
        ).fit()

    return trial


def worker(config: dict[str, Any]) -> None:
    """What each worker runs. It goes on from the last checkpoint when it replaces one that died."""
    torch.set_num_threads(max(1, int(config["cpus"])))
    context = ray.train.get_context()
    trial = TrialConfig.from_json(config["trial"])
    device = granted(config["gpus"])
    runtime = Runtime(
        device=ray.train.torch.get_device() if device.type == "cuda" else device,
        share=min(1, config["gpus"]) or 1,
        rank=context.get_world_rank(),
        workers=context.get_world_size(),
        **config["runtime"],
    )
    verdict = Verdict()
    with verdict.infeasible():
        task = open_task(trial, runtime)
        state = start(task)
        if saved := ray.train.get_checkpoint():
            with saved.as_directory() as held:
                checkpoint.restore(state, checkpoint.read(Path(held) / checkpoint.NAME, runtime.device))
        for metrics in fit(task, state):
            with tempfile.TemporaryDirectory() as fresh:
                mine = None
                if runtime.rank == 0:
                    checkpoint.save(Path(fresh), trial, state, metrics)
                    mine = ray.train.Checkpoint.from_directory(fresh)
                ray.train.report(report(task, metrics), checkpoint=mine)
    if verdict.reason is not None:
        ray.train.report({INFEASIBLE: verdict.reason})

"""One trial on one device, as an actor that Ray Tune reuses from trial to trial.

A new process imports torch for seconds; a reused one keeps it, the device and the dataset, and begins
the next trial at once. What cannot be trained (out of memory, diverged) is a trial's answer, not a crash.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from ray import tune

from automl import checkpoint
from automl.loop import Diverged, Metrics, State, fit, start
from automl.runtime import Runtime, find_device
from automl.tasks import Task, open_task
from search.config import TrialConfig
from search.searcher import FINISHED, INFEASIBLE


class TrialActor(tune.Trainable):
    """Trains `config["trial"]`, one epoch a step. `config["runtime"]`: precision and way to compile."""

    def setup(self, config: dict[str, Any]) -> None:
        resources = self.trial_resources.required_resources
        torch.set_num_threads(max(1, int(resources.get("CPU", 1))))
        gpus = resources.get("GPU", 0)
        self.runtime = Runtime(device=granted(gpus), share=min(1, gpus) or 1, **config["runtime"])
        self.begin(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.begin(new_config)
        return True

    def begin(self, config: dict[str, Any]) -> None:
        self.trial = TrialConfig.from_json(config["trial"])
        self.metrics: Metrics = {}
        self.state: State | None = None  # the last trial's memory is this one's
        self.epochs: Iterator[Metrics] = iter(())
        self.verdict = Verdict()
        with self.verdict.infeasible():
            self.task = open_task(self.trial, self.runtime)
            self.state = start(self.task)
            self.epochs = fit(self.task, self.state)

    def step(self) -> dict[str, Any]:
        with self.verdict.infeasible():
            if self.verdict.reason is None:
                self.metrics = next(self.epochs)
        if self.verdict.reason is not None:
            self.state, self.epochs = None, iter(())
            return {INFEASIBLE: self.verdict.reason, "done": True}
        result = report(self.task, self.metrics)
        return {**result, "done": result[FINISHED]}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        if self.state is not None:
            checkpoint.save(Path(checkpoint_dir), self.trial, self.state, self.metrics)

    def load_checkpoint(self, checkpoint_dir: str | None) -> None:
        path = Path(checkpoint_dir or "") / checkpoint.NAME
        if self.state is not None and path.exists():
            content = checkpoint.read(path, self.runtime.device)
            checkpoint.restore(self.state, content)
            self.metrics = content["metrics"]


def granted(gpus: float) -> torch.device:
    """The device of a trial that was given `gpus` GPUs.

    Raises RuntimeError for a GPU that cannot be used: that is an error, not a slow trial.
    """
    if gpus and not torch.cuda.is_available():
        raise RuntimeError(
            f"the trial was given {gpus:g} GPUs, but torch {torch.__version__} can use none on this node; "
            "is it a build without CUDA, or the driver too old?"
        )
    return find_device("cuda" if gpus else "cpu")


def report(task: Task, metrics: Metrics) -> dict[str, Any]:
    """An epoch as the searcher and the scheduler read it."""
    return {
        "metrics": metrics,
        "epoch": metrics["epoch"],
        task.metric: metrics[task.metric],
        FINISHED: metrics["epoch"] >= task.config.training.epochs,
    }


@dataclass
class Verdict:
    """Why a configuration cannot be trained, once it has been seen."""

    reason: str | None = None

    @contextmanager
    def infeasible(self) -> Iterator[None]:
        """Notes the reason when the block runs out of memory or diverges."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            self.reason = f"out of memory: {str(error).splitlines()[0]}"
            torch.cuda.empty_cache()
        except Diverged as error:
            self.reason = str(error)

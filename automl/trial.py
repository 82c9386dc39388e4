"""One trial on one device, as an actor that Ray Tune reuses from trial to trial.

A new process imports torch for seconds; a reused one keeps it, the device and the dataset, and begins
the next trial at once. What cannot be trained (out of memory, diverged) is a trial's answer, not a crash.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from ray import tune

from automl import checkpoint
from automl.device import find_device
from automl.loop import Diverged, Metrics, State, fit, start
from automl.tasks import open_task
from search.config import TrialConfig
from search.searcher import FINISHED, INFEASIBLE


class TrialActor(tune.Trainable):
    """Trains `config["trial"]`, one epoch a step."""

    def setup(self, config: dict[str, Any]) -> None:
        torch.set_num_threads(max(1, int(self.trial_resources.required_resources.get("CPU", 1))))
        self.begin(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.begin(new_config)
        return True

    def begin(self, config: dict[str, Any]) -> None:
        self.trial = TrialConfig.from_json(config["trial"])
        self.metrics: Metrics = {}
        self.infeasible: str | None = None
        self.state: State | None = None  # the last trial's memory is this one's
        self.epochs: Iterator[Metrics] = iter(())
        with self.feasibility():
            self.task = open_task(self.trial, find_device())
            self.state = start(self.task)
            self.epochs = fit(self.task, self.state)

    @contextmanager
    def feasibility(self) -> Iterator[None]:
        """Notes why the block could not be carried out, where the configuration is the reason."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            self.infeasible = f"out of memory: {str(error).splitlines()[0]}"
            torch.cuda.empty_cache()
        except Diverged as error:
            self.infeasible = str(error)

    def step(self) -> dict[str, Any]:
        with self.feasibility():
            if self.infeasible is None:
                self.metrics = next(self.epochs)
        if self.infeasible is not None:
            return {INFEASIBLE: self.infeasible, "done": True}
        finished = self.metrics["epoch"] >= self.trial.training.epochs
        return {
            "metrics": self.metrics,
            "epoch": self.metrics["epoch"],
            self.task.metric: self.metrics[self.task.metric],
            FINISHED: finished,
            "done": finished,
        }

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        if self.infeasible is None and self.state is not None:
            checkpoint.save(Path(checkpoint_dir), self.trial, self.state, self.metrics)

    def load_checkpoint(self, checkpoint_dir: str | None) -> None:
        path = Path(checkpoint_dir or "") / checkpoint.NAME
        if self.state is not None and path.exists():
            content = checkpoint.read(path, self.task.device)
            checkpoint.restore(self.state, content)
            self.metrics = content["metrics"]

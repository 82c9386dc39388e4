"""One trial on one device, as an actor that Ray Tune reuses from trial to trial.

A new process imports torch for seconds; a reused one keeps it, the device and the dataset, and begins
the next trial at once. What cannot be trained (out of memory, diverged) is an answer of the trial, not a crash.
"""

from pathlib import Path
from typing import Any

import torch
from ray import tune

from automl import checkpoint
from automl.device import find_device
from automl.loop import Diverged, fit, start
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
        self.metrics: dict[str, float] = {}
        self.infeasible: str | None = None
        self.state = self.epochs = None  # the last trial's memory is this one's
        try:
            self.task = open_task(self.trial, find_device())
            self.state = start(self.task)
            self.epochs = fit(self.task, self.state)
        except torch.OutOfMemoryError as error:
            self.infeasible = _out_of_memory(error)

    def step(self) -> dict[str, Any]:
        if self.infeasible is None:
            try:
                self.metrics = next(self.epochs)
            except torch.OutOfMemoryError as error:
                self.infeasible = _out_of_memory(error)
            except Diverged as error:
                self.infeasible = str(error)
        if self.infeasible is not None:
            return {INFEASIBLE: self.infeasible, "done": True}
        finished = self.state.epoch >= self.trial.training.epochs
        return {
            "metrics": self.metrics,
            "epoch": self.state.epoch,
            self.task.metric: self.metrics[self.task.metric],
            FINISHED: finished,
            "done": finished,
        }

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        if self.infeasible is None:
            checkpoint.save(Path(checkpoint_dir), self.trial, self.state, self.metrics)

    def load_checkpoint(self, checkpoint_dir: str | None) -> None:
        path = Path(checkpoint_dir or "") / checkpoint.NAME
        if path.exists():
            content = checkpoint.read(path, self.task.device)
            checkpoint.restore(self.state, content)
            self.metrics = content["metrics"]


def _out_of_memory(error: torch.OutOfMemoryError) -> str:
    torch.cuda.empty_cache()
    return f"out of memory: {str(error).splitlines()[0]}"

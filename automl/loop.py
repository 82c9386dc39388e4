"""The training loop: a generator that yields one record of metrics an epoch, for any task and device.

It knows neither Ray nor MLflow nor the terminal. Whoever runs it takes the records and may stop between
any two of them; the state is then complete, and a new loop over it goes on from there.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite

import torch
from torch import nn

from automl.device import autocast
from automl.optimiser import build_optimizer, learning_rate
from automl.tasks import Task

Metrics = dict[str, float]


class Diverged(ArithmeticError):
    """The loss is not a finite number: these hyperparameters cannot train this model."""


@dataclass
class State:
    """A training between two epochs."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    epoch: int = 0


def start(task: Task) -> State:
    """A new training of the task's model."""
    model = task.model()
    return State(model, build_optimizer(model, task.config.training))


def fit(task: Task, state: State) -> Iterator[Metrics]:
    """Train from `state` to the configuration's last epoch, and yield the metrics of each epoch.

    Yields `epoch` (1 for the first), `train_loss`, the task's validation metrics as `NAME`, the
    `learning_rate` of the epoch's last step and `seconds`. Raises Diverged when the loss or a metric is
    not finite.
    """
    training, device = task.config.training, task.device
    steps = task.steps()
    while state.epoch < training.epochs:
        begun = time.perf_counter()
        state.model.train()
        total = torch.zeros((), device=device)
        for step, batch in enumerate(task.batches(state.epoch)):
            progress = (state.epoch * steps + step) / (training.epochs * steps)
            rate = training.learning_rate * learning_rate(training.schedule, progress)
            for group in state.optimizer.param_groups:
                group["lr"] = rate
            with autocast(device):
                loss = task.loss(state.model, batch)
            loss.backward()
            state.optimizer.step()
            state.optimizer.zero_grad(set_to_none=True)
            total += loss.detach()
        train_loss = total.item() / steps  # the one synchronisation of the epoch's training
        if not isfinite(train_loss):
            raise Diverged(f"the training loss became {train_loss} in epoch {state.epoch + 1}")
        metrics = evaluate(task, state.model)
        for name, value in metrics.items():  # an accuracy is finite whatever the weights have become
            if not isfinite(value):
                raise Diverged(f"the validation {name} became {value} in epoch {state.epoch + 1}")
        state.epoch += 1
        yield {
            "epoch": state.epoch,
            "train_loss": train_loss,
            **metrics,
            "learning_rate": rate,
            "seconds": time.perf_counter() - begun,
        }


@torch.inference_mode()
def evaluate(task: Task, model: nn.Module, split: str = "validation") -> Metrics:
    """The task's metrics on a split, in the precision of training."""
    model.eval()
    with autocast(task.device):
        return task.evaluate(model, split)  # type: ignore[arg-type]

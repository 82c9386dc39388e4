"""The training loop: a generator that yields one record of metrics an epoch, for any task and device.

It knows neither Ray nor MLflow nor the terminal. Whoever runs it takes the records and may stop between
any two of them; the state is then complete, and a new loop over it goes on from there.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor, nn

from automl.optimiser import build_optimizer, learning_rate
from automl.step import Step, make_step
from automl.sync_norm import synchronise
from automl.tasks.base import Split, Task

Metrics = dict[str, float]


class Diverged(ArithmeticError):
    """The loss is not a finite number: these hyperparameters cannot train this model."""


@dataclass
class State:
    """A training between two epochs.

    scaler: keeps float16 gradients in range; it does nothing in other precisions.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    epoch: int = 0


def start(task: Task) -> State:
    """A new training of the task's model."""
    runtime = task.runtime
    model = task.model()
    if runtime.workers > 1:
        synchronise(model)
    scaler = torch.amp.GradScaler(runtime.device.type, enabled=runtime.dtype == torch.float16)
    return State(model, build_optimizer(model, task.config.training), scaler)


def fit(task: Task, state: State) -> Iterator[Metrics]:
    """Train from `state` to the configuration's last epoch, and yield the metrics of each epoch.

    Yields `epoch` (1 for the first), `train_loss`, the task's validation metrics as `NAME`, the
    `learning_rate` of the epoch's last step and `seconds`. Raises Diverged when the loss or a metric is
    not finite, after the epoch in which it happened. The device is waited for once an epoch.
    """
    training = task.config.training
    step = make_step(task, state.model, state.optimizer, state.scaler)
    while state.epoch < training.epochs:
        begun = time.perf_counter()
        losses = train_epoch(task, state, step)
        validation = evaluate(task, state.model)
        # The one synchronisation of the epoch.
        numbers = torch.cat([losses, *(value.float().view(1) for value in validation.values())]).tolist()
        history = numbers[: len(losses)]
        metrics = dict(zip(validation, numbers[len(losses) :], strict=True))
        for i, loss in enumerate(history, start=1):
            if not isfinite(loss):
                raise Diverged(f"the training loss became {loss} in epoch {state.epoch + 1}, step {i}")
        for name, value in metrics.items():  # an accuracy is finite whatever the weights have become
            if not isfinite(value):
                raise Diverged(f"the validation {name} became {value} in epoch {state.epoch + 1}")
        state.epoch += 1
        yield {
            "epoch": state.epoch,
            "train_loss": sum(history) / len(history),
            **metrics,
            "learning_rate": rate_at(task, state.epoch * len(history) - 1),
            "seconds": time.perf_counter() - begun,
        }


def train_epoch(task: Task, state: State, step: Step) -> Tensor:
    """One epoch of steps; the loss of each, over all workers, as a tensor that is still on the device."""
    steps = task.steps()
    losses = torch.zeros(steps, device=task.runtime.device)
    state.model.train()
    for i, batch in enumerate(task.batches(state.epoch)):
        losses[i] = step(batch, rate_at(task, state.epoch * steps + i))
    return task.runtime.total(losses) / task.runtime.workers


def rate_at(task: Task, step: int) -> float:
    """The learning rate of a step, counted from the first of the training."""
    training = task.config.training
    progress = step / (training.epochs * task.steps())
    return training.learning_rate * learning_rate(training.schedule, progress)


@torch.inference_mode()
def evaluate(task: Task, model: nn.Module, split: Split = "validation") -> dict[str, Tensor]:
    """The task's metrics on a split, in the precision of training, still on the device."""
    model.eval()
    with task.runtime.autocast():
        return task.evaluate(model, split)

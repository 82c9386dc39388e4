"""One training step, and the modes of running it.

- `off`: operation by operation.
- `inductor`: the forward pass and the backward pass are compiled.
- `graphs`: they are also replayed as CUDA graphs, so that a small model no longer waits for launches.

`auto` is `off`, because a search trains every architecture once (`docs/decisions/0004-compilation.md`). Only
training is compiled, evaluation is not.
"""

from typing import Literal, cast

import torch
from torch import Tensor, nn

from automl.config.device import has_graphs, is_gpu
from automl.config.runtime import Runtime, log
from automl.tasks.base import Batch, Task

Mode = Literal["off", "graphs", "inductor"]


def choose_mode(runtime: Runtime, accumulate: int = 1) -> Mode:
    """Return the mode of running the steps.

    Args:
        runtime: The runtime with the requested mode.
        accumulate: Number of batches whose gradients are accumulated.
    """
    if runtime.compile == "auto":
        return "off"
    # A replay overwrites the gradients of the previous one.
    possible = has_graphs(runtime.device) and runtime.workers == 1 and accumulate == 1
    if runtime.compile == "graphs" and not possible:
        log.warning(
            "--compile graphs needs a CUDA GPU, one worker and no accumulated gradients; running step by step"
        )
        return "off"
    return runtime.compile


def make_step(
    task: Task, model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
) -> "Step":
    """Return a step for the rest of the training of `model`."""
    runtime = task.runtime
    mode = choose_mode(runtime, task.config.training.accumulate)
    forward = model
    if runtime.workers > 1:
        # Buffers need no broadcast, as synchronised norms compute the same on every worker.
        forward = nn.parallel.DistributedDataParallel(
            model,
            device_ids=[runtime.device] if is_gpu(runtime.device) else None,
            broadcast_buffers=False,
        )
    if mode != "off":
        compiled = torch.compile(forward, mode="reduce-overhead" if mode == "graphs" else None)
        forward = cast(nn.Module, compiled)
    return Step(task, forward, optimizer, scaler)


class Step:
    """Runs `task.learn`, its gradients and the optimiser on one batch.

    Args:
        task: The task.
        forward: The model, or a wrapper that computes its output.
        optimizer: The optimiser.
        scaler: The gradient scaler.

    Attributes:
        waiting: Number of batches with gradients that have not been used in a step.
    """

    def __init__(
        self,
        task: Task,
        forward: nn.Module,
        optimizer: torch.optim.Optimizer,
        scaler: torch.amp.GradScaler,
    ) -> None:
        self.task, self.forward, self.optimizer, self.scaler = task, forward, optimizer, scaler
        self.waiting = 0

    def __call__(self, batch: Batch, rate: float) -> Tensor:
        """Train on one batch.

        With accumulated gradients, the optimiser steps at the last batch of a group, or in `finish`.

        Args:
            batch: The batch.
            rate: The learning rate.

        Returns:
            The values of `Task.learn`, on the device.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group.get("lr_scale", 1.0)
        with self.task.runtime.autocast():
            values = self.task.learn(self.forward, batch)
        self.scaler.scale(values[0]).backward()
        self.waiting += 1
        if self.waiting == self.task.config.training.accumulate:
            self.finish()
        return values.detach()

    def finish(self) -> None:
        """Step the optimiser with the gradients that have not been used."""
        if not self.waiting:
            return
        training = self.task.config.training
        if self.waiting > 1 or training.clip:
            self.scaler.unscale_(self.optimizer)
        if self.waiting > 1:
            for parameter in self.forward.parameters():
                if parameter.grad is not None:
                    parameter.grad.div_(self.waiting)
        if training.clip:
            nn.utils.clip_grad_norm_(self.forward.parameters(), training.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.waiting = 0

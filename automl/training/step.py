"""One training step, and the modes of running it.

- `off`: operation by operation.
- `inductor`: the layers are compiled. On a GPU the step is also replayed as a CUDA graph if that pays.
- `graphs`: the step is replayed as one CUDA graph, so that a small model no longer waits for launches.

`auto` is `off` on a CPU. On a CUDA GPU it measures the first steps, and replays or compiles if that pays
(`docs/decisions/0004-compilation.md`). Only training is accelerated, evaluation is not.
"""

import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from automl.config.device import has_graphs
from automl.config.runtime import Runtime, log
from automl.storage.cache_folder import cache_root
from automl.task.base import Batch, Task
from backbones.torch_internals import allow_variants

Mode = Literal["off", "auto", "graphs", "inductor"]


def choose_mode(runtime: Runtime, accumulate: int = 1) -> Mode:
    """Return the mode of the steps. `accumulate` is the number of batches whose gradients are accumulated."""
    # A replay overwrites the gradients of the previous one, and the scale of a loss is a number of the host.
    simple = runtime.workers == 1 and accumulate == 1 and runtime.dtype != torch.float16
    possible = simple and has_graphs(runtime.device)
    if runtime.compile == "graphs" and not possible:
        log.warning(
            "--compile graphs needs a CUDA GPU, one worker, no accumulated gradients, and another precision "
            "than float16; running step by step"
        )
    return runtime.compile if possible or runtime.compile == "inductor" else "off"


class Step:
    """Runs `task.learn`, its gradients and the optimiser on one batch.

    `forward` is the model, or a wrapper that computes its output. A forward pass runs in the context
    `regions`, which may compile parts.

    Attributes:
        waiting: Number of batches with gradients that have not been used in a step.
        is_settled: False while the first steps are measured, compiled or captured.
    """

    def __init__(
        self,
        task: Task,
        forward: nn.Module,
        optimizer: Optimizer,
        scaler: GradScaler,
        regions: AbstractContextManager[object] | None = None,
    ) -> None:
        self.task, self.forward, self.optimizer, self.scaler = task, forward, optimizer, scaler
        self.regions: AbstractContextManager[object] = regions or nullcontext()
        self.waiting, self.is_settled = 0, True

    def __call__(self, batch: Batch, rate: float) -> Tensor:
        """Train on one batch at a learning rate. Return the values of `Task.learn`, on the device.

        With accumulated gradients, the optimiser steps at the last batch of a group, or in `finish`.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group.get("lr_scale", 1.0)
        return self._train(batch)

    def _train(self, batch: Batch) -> Tensor:
        with self.task.runtime.autocast(), self.regions:
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

    def close(self) -> None:
        """Free what the step holds besides the training."""


VARIANTS = 64  # of one layer's code: its mixers in all trials of a process


class Regions:
    """Context in which calls of `model` run compiled: its repeated layers, or else all of it.

    Layers of the same shape share their compiled code, within a model and between the trials of a process.
    Other processes find it in the cache on disk. Evaluation runs the layers as they are.
    """

    def __init__(self, model: nn.Module) -> None:
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_root() / "inductor"))
        allow_variants(VARIANTS)
        self._layers = find_layers(model) or [model]
        self._compiled: list[Callable[..., Any]] = [
            torch.compile(layer.forward, dynamic=False) for layer in self._layers
        ]
        self._own = [vars(layer).get("forward") for layer in self._layers]

    def __enter__(self) -> None:
        for layer, compiled in zip(self._layers, self._compiled, strict=True):
            layer.forward = compiled

    def __exit__(self, *error: object) -> None:
        for layer, own in zip(self._layers, self._own, strict=True):
            if own is None:
                del layer.forward  # The class has one.
            else:
                layer.forward = own


def find_layers(model: nn.Module) -> list[nn.Module]:
    """Return the modules of one class in a list that hold most of the model's weights. Empty if none do."""
    total = count_weights([model])
    for module in model.modules():
        layers = list(module) if isinstance(module, nn.ModuleList | nn.Sequential) else []
        is_repeated = len(layers) > 1 and len({type(each) for each in layers}) == 1
        if is_repeated and 2 * count_weights(layers) > total:
            return layers
    return []


def count_weights(modules: Iterable[nn.Module]) -> int:
    """Return the number of weights of modules."""
    return sum(p.numel() for module in modules for p in module.parameters())

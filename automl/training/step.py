"""One training step, and the modes of running it.

- `off`: operation by operation.
- `inductor`: the layers are compiled. On a GPU the step is also replayed as a CUDA graph if that pays.
- `graphs`: the step is replayed as one CUDA graph, so that a small model no longer waits for launches.

`auto` is `off` on a CPU. On a CUDA GPU it measures the first steps, and replays or compiles if that pays
(`docs/decisions/0004-compilation.md`). Only training is accelerated, evaluation is not.
"""

import os
import random
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.parallel import DistributedDataParallel as Parallel
from torch.optim import Optimizer

from automl.base.errors import describe_error
from automl.config.device import (
    capture,
    is_gpu,
    is_out_of_memory,
    synchronise,
    synchronising_calls,
)
from automl.config.runtime import Runtime, log
from automl.storage.cache_folder import cache_root
from automl.task.base import Batch, Task
from automl.training.sync_norm import average
from backbones.torch_internals import allow_variants, tree_leaves, tree_map

Mode = Literal["off", "auto", "graphs", "inductor"]


def choose_mode(runtime: Runtime, accumulate: int = 1) -> Mode:
    """Return the mode of the steps. `accumulate` is the number of batches whose gradients are accumulated."""
    # A replay overwrites the gradients of the previous one, and the scale of a loss is a number of the host.
    simple = runtime.workers == 1 and accumulate == 1 and runtime.dtype != torch.float16
    possible = simple and is_gpu(runtime.device)
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
        is_last = self.waiting + 1 == self.task.config.training.accumulate
        keep = self.forward.no_sync if isinstance(self.forward, Parallel) and not is_last else nullcontext
        with keep():  # Workers exchange gradients once a group.
            with self.task.runtime.autocast(), self.regions:
                values = self.task.learn(self.forward, batch)
            self.scaler.scale(values[0]).backward()
        self.waiting += 1
        if is_last:
            self.finish()
        return values.detach()

    def finish(self) -> None:
        """Step the optimiser with the gradients that have not been used."""
        if not self.waiting:
            return
        training = self.task.config.training
        if isinstance(self.forward, Parallel) and self.waiting < training.accumulate:
            average(*(p.grad for p in self.forward.parameters() if p.grad is not None))
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


WARM_UP = 3  # steps that load kernels, choose algorithms and create the optimiser's state
TIMED = 4  # steps of a measurement
BUSY = 0.2  # fraction of these steps' time, at the end, from which on the GPU is busy and not the host
GAIN = 0.3  # fraction of a step's time that a replay is expected to save at least
CAPTURE = 0.2  # time of a capture besides its step [s]
COMPILING_PAYS = 90.0  # rest of a training from which on `auto` compiles repeated layers [s]

Sent = tuple[Batch, float]  # a batch and its learning rate
Route = Generator[Tensor, Sent, None]


@dataclass(frozen=True)
class Pace:
    """Time [s] of a step, and the fraction of it that the host waits for the GPU at the end."""

    seconds: float
    waiting: float

    def pays(self, steps: int) -> bool:
        """Return True if capturing the step saves time in a training of `steps` further steps."""
        return self.waiting < BUSY and GAIN * self.seconds * steps > CAPTURE + WARM_UP * self.seconds


class FastStep(Step):
    """Step that is captured or compiled if that pays in a training of `steps` steps.

    The mode is `auto`, `graphs` or `inductor`. The gradient scaler is not enabled.
    """

    def __init__(
        self,
        task: Task,
        forward: nn.Module,
        optimizer: Optimizer,
        scaler: GradScaler,
        *,
        mode: Mode,
        steps: int,
    ) -> None:
        super().__init__(task, forward, optimizer, scaler)
        self.mode, self.steps, self.is_settled = mode, steps, False
        self._route = self._run()
        next(self._route)

    def __call__(self, batch: Batch, rate: float) -> Tensor:
        return self._route.send((batch, rate))

    def close(self) -> None:
        self._route.close()

    def _run(self) -> Route:
        """Return the values of each step that is sent."""
        batch, rate = yield torch.empty(0)
        batch, rate = yield from self._warm_up(batch, rate)
        obstacle, values = self._find_obstacle(batch, rate)
        batch, rate = yield values
        pace, batch, rate = yield from self._time(batch, rate)
        steps = self.steps - WARM_UP - 1 - TIMED
        is_long = self.mode == "auto" and pace.seconds * steps > COMPILING_PAYS
        if self.mode == "inductor" or (is_long and find_layers(self.forward)):
            self.regions = Regions(self.forward)
            values = self._try_compiled(batch, rate)
            batch, rate = yield values
            batch, rate = yield from self._warm_up(batch, rate)
            pace, batch, rate = yield from self._time(batch, rate)
        if self.mode == "graphs" or pace.pays(steps):
            if obstacle:
                log.warning("the training step is not replayed as a CUDA graph: %s", obstacle)
            elif (graph := self._try_capture(batch)) is not None:
                yield from self._replay(graph, batch, rate)
        self.is_settled = True
        while True:
            batch, rate = yield super().__call__(batch, rate)

    def _warm_up(self, batch: Batch, rate: float) -> Generator[Tensor, Sent, Sent]:
        for _ in range(WARM_UP):
            batch, rate = yield super().__call__(batch, rate)
        return batch, rate

    def _time(self, batch: Batch, rate: float) -> Generator[Tensor, Sent, tuple[Pace, Batch, float]]:
        """Time steps with their batches. The host waits for the GPU before and after them."""
        device = self.task.runtime.device
        synchronise(device)
        begin = time.perf_counter()
        for _ in range(TIMED - 1):
            batch, rate = yield super().__call__(batch, rate)
        values = super().__call__(batch, rate)
        queued = time.perf_counter()
        synchronise(device)
        end = time.perf_counter()
        batch, rate = yield values
        return Pace((end - begin) / TIMED, (end - queued) / (end - begin)), batch, rate

    def _try_compiled(self, batch: Batch, rate: float) -> Tensor:
        """Run the first compiled step. What cannot be compiled runs operation by operation."""
        try:
            return super().__call__(batch, rate)
        except Exception as error:  # A compiler raises errors of every kind.
            if is_out_of_memory(error):
                raise
            log.warning("the model runs uncompiled, as compiling failed: %s", describe_error(error))
            self.regions = nullcontext()
            self.optimizer.zero_grad(set_to_none=True)
            self.waiting = 0
            return super().__call__(batch, rate)

    def _find_obstacle(self, batch: Batch, rate: float) -> tuple[str, Tensor]:
        """Run a step, and return what of it a graph could not replay, and its values."""
        # A graph repeats what the GPU does. It cannot wait for a result, and the host's random numbers and
        # counters would not change any more.
        before = _host_state(self.forward)
        values, calls = synchronising_calls(lambda: super(FastStep, self).__call__(batch, rate))
        after = _host_state(self.forward)
        if calls:
            return f"it waits for the GPU at {calls[0]}", values
        changed = [name for name in after if after[name] != before.get(name)]
        return f"it changes {changed[0]} on the host" if changed else "", values

    def _try_capture(self, batch: Batch) -> "Captured | None":
        try:
            return Captured(self, batch)
        except RuntimeError as error:  # A capture that fails has changed nothing.
            self.waiting = 0
            self.optimizer.zero_grad(set_to_none=True)
            log.warning("the training step is not replayed as a CUDA graph: %s", describe_error(error))
            return None

    def _replay(self, graph: "Captured", batch: Batch, rate: float) -> Route:
        """Replay the graph for batches of its shape. Others, such as a last one, run step by step."""
        self.is_settled = True
        while True:
            fits = graph.shape == _shape(batch)
            batch, rate = yield graph(batch, rate) if fits else super().__call__(batch, rate)


class Captured:
    """A step as a graph, with a batch of fixed shapes and the learning rates in fixed places on the GPU."""

    def __init__(self, step: FastStep, batch: Batch) -> None:
        optimizer = step.optimizer
        self.shape = _shape(batch)
        self._batch = tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, batch)
        device = step.task.runtime.device
        groups: list[dict[str, Any]] = optimizer.param_groups
        self._groups = [(torch.zeros((), device=device), group) for group in groups]
        kept = [(group["lr"], group.get("capturable")) for group in groups]
        optimizer.zero_grad(set_to_none=True)
        for rate, group in self._groups:
            group["lr"] = rate
            if "capturable" in group:
                group["capturable"] = True
        try:
            self._replay, self._values = capture(lambda: step._train(self._batch), device)
        finally:
            for group, (own_rate, capturable) in zip(groups, kept, strict=True):
                group["lr"] = own_rate
                if capturable is not None:
                    group["capturable"] = capturable

    def __call__(self, batch: Batch, rate: float) -> Tensor:
        """Train on a batch, and return its values. The next call overwrites them."""
        for place, leaf in zip(tree_leaves(self._batch), tree_leaves(batch), strict=True):
            if isinstance(leaf, Tensor):
                place.copy_(leaf)
        for place, group in self._groups:
            group["lr"] = rate * group.get("lr_scale", 1.0)  # as a checkpoint keeps it
            place.fill_(group["lr"])
        self._replay()
        return self._values


def _shape(batch: Batch) -> list[Any]:
    """Return the shapes and types of a batch's tensors, and its other values."""
    return [
        (leaf.shape, leaf.dtype, leaf.device) if isinstance(leaf, Tensor) else leaf
        for leaf in tree_leaves(batch)
    ]


def _host_state(model: nn.Module) -> dict[str, Any]:
    """Return the states of the host's generators, and the numbers and texts that modules hold."""
    numpy_state = np.random.get_state(legacy=False)["state"]
    states: dict[str, Any] = {
        "random numbers of torch": torch.get_rng_state().numpy().tobytes(),
        "random numbers of NumPy": (numpy_state["pos"], numpy_state["key"].tobytes()),
        "random numbers of Python": random.getstate(),
    }
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if isinstance(value, bool | int | float | str):
                states[f"{name or 'the model'}.{key}"] = value
    return states


def make_step(task: Task, model: nn.Module, optimizer: Optimizer, scaler: GradScaler, steps: int = 0) -> Step:
    """Return a step for the rest of the training of `model`.

    `steps` is the number of steps left, which decides what pays. It is that of the configuration if 0.
    """
    runtime, training = task.runtime, task.config.training
    mode = choose_mode(runtime, training.accumulate)
    forward = model
    if runtime.workers > 1:
        # Buffers need no broadcast, as synchronised norms compute the same on every worker.
        forward = Parallel(
            model, device_ids=[runtime.device] if is_gpu(runtime.device) else None, broadcast_buffers=False
        )
    if mode == "off":
        return Step(task, forward, optimizer, scaler)
    if mode == "inductor" and choose_mode(replace(runtime, compile="auto"), training.accumulate) == "off":
        return Step(task, forward, optimizer, scaler, Regions(model))
    return FastStep(
        task, forward, optimizer, scaler, mode=mode, steps=steps or training.epochs * task.steps()
    )

"""Measures the costs of a configuration before it is trained: parameters, MACs, memory, latency, time ratio.

Measurements are cached on this machine by architecture, training and code version: the same trial has the
same profile again. A time ratio that could not be measured precisely is not cached.
"""

import gc
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import attention
from automl.config.device import (
    device_name,
    empty_cache,
    is_gpu,
    measures_peak_memory,
    peak_memory,
    start_peak_memory,
)
from automl.config.runtime import Runtime
from automl.costs.time_ratio import Timings, measure_time_ratio, own_time_ratio
from automl.storage.cache_folder import cache_root, once
from automl.tasks import Inputs, Task, open_task
from automl.training.clock import quick_quarter
from automl.training.loop import start
from automl.training.step import choose
from backbones import call
from backbones.macs import count_macs
from backbones.mixer import Mixer
from backbones.torch_internals import tree_leaves
from search.config import TrialConfig
from search.serialise import read_json, to_json

FORWARDS = 40  # passes that a latency is measured by


@dataclass(frozen=True, kw_only=True)
class CostProfile:
    """The costs of a configuration.

    params: numbers that are learned. macs: multiply-adds of a forward pass of one input.
    memory: bytes at the peak of a training step: on a GPU what is allocated; on a CPU weights, gradients,
        the optimiser's state and what the forward pass keeps for the backward pass.
    latency: ms of a forward pass of one input.
    time_ratio, time_ratio_low, time_ratio_high: epoch time relative to the baseline's, with its 95 %
        interval.
    time_ratio_counted: 1 where it is partly estimated from operation counts, as it could not be measured
        precisely, or else 0.
    validation: the part of an epoch's time that its validation takes. epoch: seconds of an epoch, as time
        ratios are measured: processor time on a CPU.
    """

    params: int
    macs: int
    memory: int
    latency: float
    time_ratio: float
    time_ratio_low: float
    time_ratio_high: float
    time_ratio_counted: float
    validation: float
    epoch: float


def measure(config: TrialConfig, baseline: TrialConfig, runtime: Runtime) -> CostProfile:
    """The cost profile of `config` on this device, beside `baseline`, whose epoch is the unit of time.

    Raises torch.OutOfMemoryError when a step does not fit.
    """
    # One worker's part of the batch, without the others: what is exchanged is the same for both.
    config, baseline = (of_one_worker(one, runtime.workers) for one in (config, baseline))
    runtime = replace(runtime, rank=0, workers=1)
    file = cache_root() / "profile" / f"{_key(_about(config), _about(baseline), runtime)}.json"
    if file.exists():
        return _read(file)
    timed = file.with_suffix(".timings.json")
    timings = read_json(Timings, timed) if timed.exists() else Timings()
    found = _measure(config, baseline, runtime, timings)
    if found.time_ratio_counted:
        once(timed, lambda path: _write(path, to_json(timings)), lambda path: False)
        return found
    # Another trial may have measured the same meanwhile; both go by what was there first.
    return _read(once(file, lambda path: _write(path, to_json(found))))


def _write(file: Path, value: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(value))


def _read(file: Path) -> CostProfile:
    return read_json(CostProfile, file)


def _measure(config: TrialConfig, baseline: TrialConfig, runtime: Runtime, timings: Timings) -> CostProfile:
    task = open_task(config, runtime)
    model = task.model()
    memory = step_memory(task, model)  # first: what does not fit shows here
    one = task.example(1)
    params, macs = sum(p.numel() for p in model.parameters()), count_macs(model.eval(), one)
    latency = _latency(task, model, one)
    ours, theirs = _about(config), _about(baseline)
    if ours == theirs:
        time_ratio = own_time_ratio(task, model)
    else:
        other = open_task(baseline, runtime)
        time_ratio = measure_time_ratio(
            task,
            other,
            timings,
            model=model,
            at_least_one=_with_modules(ours, theirs)
            and not any(isinstance(m, Mixer) for m in model.modules()),
        )
    _release(runtime)
    return CostProfile(
        params=params,
        macs=macs,
        memory=memory,
        latency=latency,
        time_ratio=time_ratio.ratio,
        time_ratio_low=time_ratio.low,
        time_ratio_high=time_ratio.high,
        time_ratio_counted=float(time_ratio.counted),
        validation=time_ratio.validation,
        epoch=time_ratio.epoch,
    )


def of_one_worker(config: TrialConfig, workers: int) -> TrialConfig:
    """Return the training of one worker's part of each batch."""
    return config.change(training={"batch_size": max(2, config.training.batch_size // workers)}, seed=0)


def _with_modules(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    """Whether the first model is the second one with modules in it, and all else is the same."""
    mine, other = (dict(config["model"]["placement"]) for config in (ours, theirs))
    bare = [{**config, "model": {**config["model"], "placement": {}}} for config in (ours, theirs)]
    return bare[0] == bare[1] and other.items() <= mine.items()


# Fields of a training that change neither its size nor the time of an epoch.
NO_COST = ("epochs", "schedule", "decay_every", "decay_factor", "beta1", "beta2", "eps")


def _about(config: TrialConfig) -> dict[str, Any]:
    """What decides how large a model and how long an epoch of it is."""
    training = asdict(config.training)
    # A mixup of 0.1 takes as long as one of 0.4, and another time than none.
    decides = {key: value > 0 if isinstance(value, float) else value for key, value in training.items()}
    return {
        "task": config.task,
        "data": config.to_json()["data"],
        "model": config.to_json()["model"],
        "training": {key: value for key, value in decides.items() if key not in NO_COST},
    }


def _key(*parts: Any) -> str:
    """A name for what is measured here, with this code. The last of `about` is the runtime."""
    *what, runtime = parts
    name = device_name(runtime.device)
    ways = [str(runtime.dtype), choose(runtime), runtime.memory_fraction]
    libraries = [version(library) for library in ("torch", "torchvision", "timm")]
    here = [name, torch.get_num_threads(), *libraries, code_digest()]
    return hashlib.sha256(json.dumps([*what, ways, here], sort_keys=True).encode()).hexdigest()[:32]


@cache
def code_digest() -> str:
    """A hash of this project's code: with other code, a step may take another time."""
    root = Path(attention.__file__).parent.parent
    found = hashlib.sha256()
    for package in ("attention", "automl", "backbones", "search"):
        for file in sorted((root / package).rglob("*.py")):
            found.update(file.relative_to(root).as_posix().encode() + file.read_bytes())
    return found.hexdigest()


def _latency(task: Task, model: nn.Module, one: Inputs) -> float:
    """Measured once for an architecture, however it is trained."""
    config = task.config
    shapes = [list(leaf.shape) for leaf in tree_leaves(one)]
    params = sum(p.numel() for p in model.parameters())  # which tells how many classes there are
    architecture = [config.task, shapes, params, config.to_json()["model"]]
    file = cache_root() / "profile" / f"latency-{_key(architecture, task.runtime)}.json"

    def make(path: Path) -> None:
        _write(path, {"ms": measure_latency(model, one, task.runtime)})

    return float(json.loads(once(file, make).read_text())["ms"])


def measure_latency(model: nn.Module, one: Inputs, runtime: Runtime) -> float:
    """The latency in ms: the lower quartile of several forward passes."""

    @torch.inference_mode()
    def forward() -> None:
        with runtime.autocast():
            call(model, one)

    for _ in range(3):
        forward()
    return 1e3 * quick_quarter(forward, runtime, FORWARDS)


def step_memory(task: Task, model: nn.Module | None = None) -> int:
    """Bytes at the peak of one training step at full batch size. Also runs one batch of validation.

    model: the task's, where it has been made.
    """
    runtime = task.runtime
    measured = measures_peak_memory(runtime.device)
    batch = next(iter(task.batches(0)))
    if measured:
        _release(runtime)
        held = [] if model is None else [*model.parameters(), *model.buffers()]
        before = start_peak_memory(runtime.device) - sum(tensor.nbytes for tensor in held)
    state = start(task, model)
    for group in state.optimizer.param_groups:
        group["lr"] = 0.0  # the model is wanted as it is
    state.model.train()
    losses = []

    def forward() -> None:
        with runtime.autocast():
            losses.append(task.loss(state.model, batch))

    saved = kept_for_backward(state.model, forward)
    (loss,) = losses
    state.scaler.scale(loss).backward()
    state.scaler.step(state.optimizer)
    state.optimizer.zero_grad(set_to_none=True)
    if measured:
        with torch.inference_mode(), runtime.autocast():
            call(state.model.eval(), task.example(2 * task.config.training.batch_size))
        peak = peak_memory(runtime.device) - before
        del state, loss, losses
        _release(runtime)
        return peak
    weights = sum(p.nbytes for p in state.model.parameters())
    average = 0 if state.average is None else weights
    states = sum(
        value.nbytes
        for values in state.optimizer.state.values()
        for value in values.values()
        if isinstance(value, Tensor)
    )
    return 2 * weights + average + states + saved


def kept_for_backward(model: nn.Module, forward: Callable[[], object]) -> int:
    """Bytes that `forward`, a pass through `model`, keeps for the backward pass beside the weights."""
    saved: dict[int, int] = {}
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        forward()
    return sum(saved.values())


def _release(runtime: Runtime) -> None:
    """Of a GPU's memory what nothing needs any more. On a CPU, looking for it takes as long as steps."""
    if is_gpu(runtime.device):
        gc.collect()
        empty_cache(runtime.device)

"""What a configuration costs, measured before it is trained: parameters, MACs, memory, latency, pace.

What was measured is kept in this machine's cache, for an architecture and how it is trained, and for this
code: the same trial has the same facts again. A pace that could not be measured precisely is not kept.
"""

import gc
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import attention
from automl.clock import quick_quarter
from automl.data.store import cache_root, once
from automl.loop import start
from automl.pace import Timings, measure_pace, own_pace
from automl.runtime import Runtime
from automl.step import choose
from automl.tasks import Task, open_task
from backbones.macs import count_macs
from search.config import TrialConfig

FORWARDS = 40  # passes that a latency is measured by


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The costs of a configuration.

    params: numbers that are learned. macs: multiply-adds of a forward pass of one input.
    memory: bytes at the peak of a training step: on a GPU what is allocated; on a CPU weights, gradients,
        the optimiser's state and what the forward pass keeps for the backward pass.
    latency: ms of a forward pass of one input.
    pace, pace_low, pace_high: time of an epoch, times that of the baseline's, with its 95 % interval.
    pace_counted: 1 where the pace is one of counted work, as it could not be measured precisely; 0 elsewhere.
    validation: the part of an epoch's time that its validation takes. epoch: seconds of an epoch, as paces
    are
        measured: processor time on a CPU.
    """

    params: int
    macs: int
    memory: int
    latency: float
    pace: float
    pace_low: float
    pace_high: float
    pace_counted: float
    validation: float
    epoch: float

    def to_json(self) -> dict[str, float]:
        return asdict(self)


def measure(config: TrialConfig, baseline: TrialConfig, runtime: Runtime) -> Facts:
    """The facts of `config` on this device, with the pace beside `baseline`, whose epoch is the unit of time.

    Raises torch.OutOfMemoryError when a step does not fit.
    """
    # One worker's part of the batch, without the others: what is exchanged is the same for both.
    config, baseline = (_of_one_worker(one, runtime) for one in (config, baseline))
    runtime = replace(runtime, rank=0, workers=1)
    file = cache_root() / "facts" / f"{_key(_about(config), _about(baseline), runtime)}.json"
    if file.exists():
        return _read(file)
    timed = file.with_suffix(".timings.json")
    timings = Timings(**json.loads(timed.read_text())) if timed.exists() else Timings()
    found = _measure(config, baseline, runtime, timings)
    if found.pace_counted:
        once(timed, lambda path: _write(path, asdict(timings)), lambda path: False)
        return found
    # Another trial may have measured the same meanwhile; both go by what was there first.
    return _read(once(file, lambda path: _write(path, found.to_json())))


def _write(file: Path, value: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(value))


def _read(file: Path) -> Facts:
    return Facts(**json.loads(file.read_text()))


def _measure(config: TrialConfig, baseline: TrialConfig, runtime: Runtime, timings: Timings) -> Facts:
    task = open_task(config, runtime)
    model = task.model()
    memory = step_memory(task, model)  # first: what does not fit shows here
    one = task.example(1)
    params, macs = sum(p.numel() for p in model.parameters()), count_macs(model.eval(), one)
    latency = _latency(task, model, one)
    ours, theirs = _about(config), _about(baseline)
    if ours == theirs:
        pace = own_pace(task, model)
    else:
        other = open_task(baseline, runtime)
        pace = measure_pace(task, other, timings, model=model, at_least_one=_with_modules(ours, theirs))
    _release(runtime)
    return Facts(
        params=params,
        macs=macs,
        memory=memory,
        latency=latency,
        pace=pace.ratio,
        pace_low=pace.low,
        pace_high=pace.high,
        pace_counted=float(pace.counted),
        validation=pace.validation,
        epoch=pace.epoch,
    )


def _of_one_worker(config: TrialConfig, runtime: Runtime) -> TrialConfig:
    return config.change(
        training={"batch_size": max(2, config.training.batch_size // runtime.workers)}, seed=0
    )


def _with_modules(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    """Whether the first model is the second one with modules added, and all else is the same."""
    mine, other = (dict(about["model"]["placement"]) for about in (ours, theirs))
    bare = [{**about, "model": {**about["model"], "placement": {}}} for about in (ours, theirs)]
    return bare[0] == bare[1] and other.items() <= mine.items()


def _about(config: TrialConfig) -> dict[str, Any]:
    """What decides how large a model and how long an epoch of it is."""
    training = config.training
    return {
        "task": config.task,
        "data": config.to_json()["data"],
        "model": config.to_json()["model"],
        "training": [training.batch_size, training.optimizer, training.mixup > 0],
    }


def _key(*about: Any) -> str:
    """A name for what is measured here, with this code. The last of `about` is the runtime."""
    *what, runtime = about
    cuda = runtime.device.type == "cuda"
    name = torch.cuda.get_device_name(runtime.device) if cuda else processor()
    ways = [str(runtime.dtype), choose(runtime, 10**9), runtime.share]
    here = [name, torch.get_num_threads(), torch.__version__, code_digest()]
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


def _latency(task: Task, model: nn.Module, one: Tensor) -> float:
    """Measured once for an architecture, however it is trained."""
    config = task.config
    about = [config.task, config.data.size, len(task.labels), config.to_json()["model"]]
    file = cache_root() / "facts" / f"latency-{_key(about, task.runtime)}.json"

    def make(path: Path) -> None:
        _write(path, {"ms": measure_latency(model, one, task.runtime)})

    return float(json.loads(once(file, make).read_text())["ms"])


def processor() -> str:
    """The name of the CPU, as far as it is known."""
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":")[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return "cpu"


def measure_latency(model: nn.Module, one: Tensor, runtime: Runtime) -> float:
    """The time of a forward pass in ms, of the quicker ones."""

    @torch.inference_mode()
    def forward() -> None:
        with runtime.autocast():
            model(one)

    for _ in range(3):
        forward()
    return 1e3 * quick_quarter(forward, runtime, FORWARDS)


def step_memory(task: Task, model: nn.Module | None = None) -> int:
    """Bytes at the peak of one training step at full batch size. Also runs one batch of validation.

    model: the task's, where it has been made.
    """
    runtime = task.runtime
    cuda = runtime.device.type == "cuda"
    batch = next(iter(task.batches(0)))
    if cuda:
        _release(runtime)
        torch.cuda.reset_peak_memory_stats(runtime.device)
        held = [] if model is None else [*model.parameters(), *model.buffers()]
        before = torch.cuda.memory_allocated(runtime.device) - sum(tensor.nbytes for tensor in held)
    state = start(task, model)
    for group in state.optimizer.param_groups:
        group["lr"] = 0.0  # the model is wanted as it is
    kept: dict[int, int] = {}
    own = {p.untyped_storage().data_ptr() for p in state.model.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    state.model.train()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), runtime.autocast():
        loss = task.loss(state.model, batch)
    state.scaler.scale(loss).backward()
    state.scaler.step(state.optimizer)
    state.optimizer.zero_grad(set_to_none=True)
    if cuda:
        with torch.inference_mode(), runtime.autocast():
            state.model.eval()(task.example(2 * task.config.training.batch_size))
        peak = torch.cuda.max_memory_allocated(runtime.device) - before
        del state, loss
        _release(runtime)
        return peak
    weights = sum(p.nbytes for p in state.model.parameters())
    states = sum(
        value.nbytes
        for values in state.optimizer.state.values()
        for value in values.values()
        if isinstance(value, Tensor)
    )
    return 2 * weights + states + sum(kept.values())


def _release(runtime: Runtime) -> None:
    gc.collect()
    if runtime.device.type == "cuda":
        torch.cuda.empty_cache()

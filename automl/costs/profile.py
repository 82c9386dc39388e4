"""Measure the costs of a configuration before it is trained, and those of a model without a dataset.

Measurements of configurations are cached on this machine by architecture, training and code version, so that
the same trial has the same profile again. A time ratio that could not be measured precisely is not cached.
"""

import gc
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import attention
from attention import Spec
from attention.decoding import Mixer
from automl.base.errors import InputError
from automl.base.serialise import read_json, write_json
from automl.config import device
from automl.config.runtime import Runtime, threads
from automl.costs.time_ratio import Timings, compare_steps, measure_own_epoch, measure_time_ratio
from automl.storage.cache_folder import cache_root, once
from automl.task import Inputs, Task, open_task
from automl.task.checks import ModelCheck, check_model
from automl.task.subject import CLASSES, Subject, make_subject
from automl.training.clock import time_lower_quartiles
from automl.training.loop import start
from automl.training.step import choose_mode
from backbones import BACKBONES, Example, call, insert
from backbones.channels import set_format
from backbones.cost import count_macs
from backbones.torch_internals import tree_leaves, tree_map_only
from search.config import TrialConfig

FORWARDS = 40  # maximum number of passes of a latency measurement
STEPS = 16  # maximum number of timed steps of a model


@dataclass(frozen=True, kw_only=True)
class CostProfile:
    """Costs of a configuration.

    Attributes:
        params: Number of trained parameters.
        macs: Multiply-adds of the forward pass of one input.
        memory: Peak of a training step [bytes]. On a GPU the allocated memory; on a CPU weights, gradients,
            the optimiser's state and the values kept for the backward pass.
        latency: Time of the forward pass of one input [ms]. For a language model, of one decoded token.
        latency_ratio: Latency divided by that of the trained model that a trial starts from, timed in turn. 1
            without one.
        time_ratio: Epoch time divided by the baseline's.
        time_ratio_low: Lower end of its 95 % interval.
        time_ratio_high: Upper end of its 95 % interval.
        time_ratio_imprecise: 1 if this interval is too wide, 0 otherwise.
        validation: Fraction of an epoch's time that its validations take.
        epoch: Time of an epoch [s], measured as time ratios are: processor time on a CPU.
        cache: Keys, values and states that a language model keeps while decoding [bytes]. 0 for other tasks.
    """

    params: int
    macs: int
    memory: int
    latency: float
    time_ratio: float
    time_ratio_low: float
    time_ratio_high: float
    time_ratio_imprecise: float
    validation: float
    epoch: float
    cache: int = 0
    latency_ratio: float = 1.0


def measure(config: TrialConfig, baseline: TrialConfig, runtime: Runtime) -> CostProfile:
    """Measure the cost profile of `config` on this device. The epoch of `baseline` is the unit of time.

    A trial of several workers is measured as one of them. Raises `torch.OutOfMemoryError` if a training step
    does not fit into memory.
    """
    # One worker's part of the batch, without communication, which takes the same time for both models.
    config, baseline = (make_worker_config(each, runtime.workers) for each in (config, baseline))
    runtime = replace(runtime, rank=0, workers=1)
    key = _key(_describe(config), _describe(baseline), runtime.validations, runtime)
    file = cache_root() / "profile" / f"{key}.json"
    if file.exists():
        return read_json(CostProfile, file)
    timed = file.with_suffix(".timings.json")
    timings = read_json(Timings, timed) if timed.exists() else Timings()
    profile = _measure(config, baseline, runtime, timings)
    if profile.time_ratio_imprecise:
        once(timed, lambda path: write_json(path, timings), lambda path: False)
        return profile
    # Another trial may have measured the same meanwhile. Both use the file that was written first.
    return read_json(CostProfile, once(file, lambda path: write_json(path, profile)))


def _cache(config: TrialConfig) -> int:
    try:
        return config.cache_bytes()
    except InputError:  # An attention of the user's own need not be able to decode.
        return 0


def _measure(config: TrialConfig, baseline: TrialConfig, runtime: Runtime, timings: Timings) -> CostProfile:
    task = open_task(config, runtime)
    model = task.model()
    memory = measure_step_memory(task, model)  # First, since it raises if the step does not fit.
    example = task.example(1)
    params, macs = sum(p.numel() for p in model.parameters()), count_macs(model.eval(), example)
    latencies = _latency(task, model, example)
    described, baseline_described = _describe(config), _describe(baseline)
    if described == baseline_described:
        time_ratio = measure_own_epoch(task, model)
    else:
        baseline_task = open_task(baseline, runtime)
        adds = _adds_modules(described, baseline_described)
        floor = 1.0 if adds and not any(isinstance(m, Mixer) for m in model.modules()) else 0.0
        time_ratio = measure_time_ratio(task, baseline_task, timings, model=model, floor=floor)
    _release(runtime)
    return CostProfile(
        params=params,
        macs=macs,
        memory=memory,
        **latencies,
        time_ratio=time_ratio.ratio,
        time_ratio_low=time_ratio.low,
        time_ratio_high=time_ratio.high,
        time_ratio_imprecise=float(time_ratio.imprecise),
        validation=time_ratio.validation,
        epoch=time_ratio.epoch,
        cache=_cache(config),
    )


def make_worker_config(config: TrialConfig, workers: int) -> TrialConfig:
    """Return the configuration that trains one worker's part of each batch."""
    return config.change(training={"batch_size": max(2, config.training.batch_size // workers)}, seed=0)


def _adds_modules(config: Mapping[str, Any], baseline: Mapping[str, Any]) -> bool:
    """Return whether `config` only adds modules to `baseline`."""
    placement, other = (dict(each["model"]["placement"]) for each in (config, baseline))
    bare = [{**each, "model": {**each["model"], "placement": {}}} for each in (config, baseline)]
    return bare[0] == bare[1] and other.items() <= placement.items()


# Fields of a training that affect neither the size of the model nor the time of an epoch.
NO_COST = ("epochs", "schedule", "decay_every", "decay_factor", "beta1", "beta2", "eps")


def _describe(config: TrialConfig) -> dict[str, Any]:
    """Return the fields that determine the size of the model and the time of its epoch."""
    return {
        "task": config.task,
        "data": config.to_json()["data"],
        "model": config.to_json()["model"],
        "training": {
            key: _without_size(value) for key, value in asdict(config.training).items() if key not in NO_COST
        },
    }


def _without_size(value: Any) -> Any:
    """Return a number's sign: a mixup of 0.1 takes as long as one of 0.4, but not as long as none."""
    if isinstance(value, Mapping):
        return {key: _without_size(each) for key, each in value.items()}
    return value > 0 if isinstance(value, float) else value


def _key(*contents: Any) -> str:
    """Return the cache key of a measurement with this code on this device. The runtime comes last."""
    *fields, runtime = contents
    name = device.device_name(runtime.device)
    modes = [str(runtime.dtype), choose_mode(runtime), runtime.memory_fraction]
    libraries = [version(library) for library in ("torch", "torchvision", "timm")]
    environment = [name, torch.get_num_threads(), *libraries, code_digest()]
    text = json.dumps([*fields, modes, environment], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@cache
def code_digest() -> str:
    """Return a hash of this project's code. With other code, a step may take another time."""
    root = Path(attention.__file__).parent.parent
    digest = hashlib.sha256()
    for package in ("attention", "automl", "backbones", "search"):
        for file in sorted((root / package).rglob("*.py")):
            digest.update(file.relative_to(root).as_posix().encode() + file.read_bytes())
    return digest.hexdigest()


def _latency(task: Task, model: nn.Module, example: Inputs) -> dict[str, float]:
    """Return the latency [ms] and its ratio, which an architecture has whatever its training."""
    config = task.config
    shapes = [list(leaf.shape) for leaf in tree_leaves(example)]
    params = sum(p.numel() for p in model.parameters())  # differs by the number of classes
    architecture = [config.task, shapes, params, config.to_json()["model"], config.data.decoding_context]
    file = cache_root() / "profile" / f"latency-{_key(architecture, task.runtime)}.json"

    def measure_into(path: Path) -> None:
        serves = [task.serve(model, example)]
        if config.model.weights and config.model.placement:
            plain = open_task(config.change(model={"placement": {}}), task.runtime)
            serves.append(plain.serve(plain.model().to(task.runtime.device).eval(), example))
        latencies = measure_latencies(serves, task.runtime, FORWARDS)
        write_json(path, {"latency": latencies[0], "latency_ratio": latencies[0] / latencies[-1]})

    return dict(json.loads(once(file, measure_into).read_text()))


def measure_latencies(serves: Sequence[Callable[[], object]], runtime: Runtime, times: int) -> list[float]:
    """Return the latency [ms] of each function: the lower quartile of up to `times` calls, in turn."""

    def forward(serve: Callable[[], object]) -> None:
        with torch.inference_mode(), runtime.autocast():
            serve()

    runs = [partial(forward, serve) for serve in serves]
    return [1e3 * latency for latency in time_lower_quartiles(runs, runtime, times)]


def measure_step_memory(task: Task, model: nn.Module | None = None) -> int:
    """Measure the peak memory [bytes] of one training step at full batch size, and of one validation batch.

    The task's model is built if it is None.
    """
    runtime = task.runtime
    measured = device.is_gpu(runtime.device)
    batch = next(iter(task.batches(0)))
    if measured:
        _release(runtime)
        tensors = [] if model is None else [*model.parameters(), *model.buffers()]
        before = device.start_peak_memory(runtime.device) - sum(tensor.nbytes for tensor in tensors)
    state = start(task, model)
    for group in state.optimizer.param_groups:
        group["lr"] = 0.0  # The step must not change the model.
    task.set_training(state.model)
    losses = []

    def forward() -> None:
        with runtime.autocast():
            losses.append(task.loss(state.model, batch))

    saved = measure_kept_memory(state.model, forward)
    (loss,) = losses
    state.scaler.scale(loss).backward()
    state.scaler.step(state.optimizer)
    state.optimizer.zero_grad(set_to_none=True)
    if measured:
        with torch.inference_mode(), runtime.autocast():
            call(state.model.eval(), task.example(2 * task.config.training.batch_size))
        peak = device.peak_memory(runtime.device) - before
        del state, loss, losses
        _release(runtime)
        return peak
    weights = sum(p.nbytes for p in state.model.parameters())
    average = 0 if state.average is None else weights
    values = (value for states in state.optimizer.state.values() for value in states.values())
    states = sum(value.nbytes for value in values if isinstance(value, Tensor))
    return 2 * weights + average + states + saved


def measure_kept_memory(model: nn.Module, forward: Callable[[], object]) -> int:
    """Measure the memory [bytes] that `forward`, a pass through `model`, keeps for the backward pass.

    The weights do not count.
    """
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
    """Free unused memory of a GPU. On a CPU, searching for garbage would take as long as steps."""
    if device.is_gpu(runtime.device):
        gc.collect()
        device.empty_cache(runtime.device)


@dataclass(frozen=True, kw_only=True)
class ModelCost:
    """Measured cost of a model.

    Attributes:
        parameters: Number of trained parameters.
        macs: Multiply-adds of the forward pass of one input.
        activations: Memory kept for the backward pass, for one input [bytes].
        step: Time of a forward and backward pass, for one input of the batch [s]. On a CPU the processor time
            of one core. None if the ratio is not resolved.
        step_ratio: Time of a step divided by that of the plain model. None if its interval is wider than a
            search accepts, as on a busy machine.
        step_low: Lower end of its 95 % interval.
        step_high: Upper end of its 95 % interval.
    """

    parameters: int
    macs: int
    activations: int
    step: float | None
    step_ratio: float | None = 1.0
    step_low: float = 1.0
    step_high: float = 1.0


def measure_costs(
    models: Mapping[str, nn.Module], subject: Subject, batch: int, runtime: Runtime
) -> dict[str, ModelCost]:
    """Measure the costs of one or two models of `subject`, by name. The first one is the plain model.

    Steps of `batch` inputs are timed in turn. Leaves the models in training mode.
    """

    def inputs(count: int) -> Example:
        on_device: Example = tree_map_only(
            Tensor, lambda tensor: tensor.to(runtime.device), subject.example(count)
        )
        return on_device

    example, many = inputs(1), inputs(batch)
    counts, steps = {}, []
    for name, model in models.items():
        macs = count_macs(model.to(runtime.device).eval(), example)
        model.train()
        activations = measure_kept_memory(model, partial(_loss, model, subject, many, runtime))
        counts[name] = {
            "parameters": sum(p.numel() for p in model.parameters()),
            "macs": macs,
            "activations": activations // batch,
        }
        steps.append(partial(_step, model, subject, many, runtime))
    with threads(1):  # as a trial has, and so that no thread waits for another one that has no core
        if len(steps) == 1:
            (step,) = time_lower_quartiles(steps, runtime, STEPS)
            return {name: ModelCost(**count, step=step / batch) for name, count in counts.items()}
        times = compare_steps(steps, runtime)
    plain, placed = counts
    ratio = None if times.imprecise else times.ratio
    return {
        plain: ModelCost(**counts[plain], step=times.epoch / batch),
        placed: ModelCost(
            **counts[placed],
            step=None if ratio is None else times.epoch * ratio / batch,
            step_ratio=ratio,
            step_low=times.low,
            step_high=times.high,
        ),
    }


def _loss(model: nn.Module, subject: Subject, inputs: Example, runtime: Runtime) -> Tensor:
    with runtime.autocast():
        return subject.loss(model, inputs)


def _step(model: nn.Module, subject: Subject, inputs: Example, runtime: Runtime) -> None:
    _loss(model, subject, inputs, runtime).backward()
    model.zero_grad(set_to_none=True)


def measure_cost(
    backbone: str,
    placement: Mapping[str, Spec] | None = None,
    *,
    size: int | None = None,
    options: Mapping[str, Any] | None = None,
    task: str | None = None,
    batch: int | None = None,
) -> dict[str, ModelCost]:
    """Measure parameters, MACs, activations and step time of a model, plain and with a placement.

    Args:
        backbone: The model, such as `xresnet18`, `torchvision:NAME`, `timm:NAME` or `file.py:Net`.
        placement: The attention of each site.
        size: The side of images in pixels, height of stereo pairs, steps of sequences, or tokens of texts.
        options: Options of the model.
        task: The task. With `detection`, the model is a Mask R-CNN on the backbone.
        batch: The batch size of a training step.

    Returns:
        The costs of the model `plain` and, if there is a placement, of `placement`.

    Raises:
        InputError: The model, the placement, the size or the batch is invalid.

    Example:
        >>> import automl
        >>> attention = {"stage1.block2": automl.Spec("ssa")}
        >>> costs = automl.measure_cost("xresnet18", attention, size=32, options={"width": 0.25})
        >>> costs["placement"].parameters > costs["plain"].parameters
        True
    """
    return costs(make_subject(backbone, size=size, options=options, task=task), placement or {}, batch)


def costs(subject: Subject, placement: Mapping[str, Spec], batch: int | None = None) -> dict[str, ModelCost]:
    """Return the costs of the plain model and, if there is a placement, of the model with it.

    Raise InputError if the batch size, the model or the placement is invalid.
    """
    batch = subject.batch if batch is None else batch
    if not 2 <= batch <= 4096:
        raise InputError(f"--batch must be between 2 (for batch norm) and 4096; got {batch}")
    runtime = Runtime(device=device.find_device())
    check = ModelCheck()
    if subject.images:
        check = check_model(
            subject.name,
            lambda: subject.build().to(runtime.device),
            lambda count: torch.rand_like(subject.example(count), device=runtime.device),  # type: ignore[arg-type]
            runtime,
            images=True,
            classes=CLASSES,
            run=subject.name not in BACKBONES,
        )
    models = {"plain": subject.build()}
    if placement:
        models["placement"] = insert(subject.build(), placement, subject.example(2))
    for model in models.values():
        set_format(model, check.memory_format)
    return measure_costs(models, subject, batch, runtime)

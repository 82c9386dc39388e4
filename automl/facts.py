"""What a configuration costs, measured before it is trained: parameters, MACs, memory, latency, pace.

The pace is how many times longer one training step takes than the plain baseline's. Both are run in turn in
the same process, so that whatever slows the machine down slows both, and the median of the pairs is taken.
"""

import gc
import hashlib
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from scipy.stats import binom
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from automl.data.store import cache_root, once
from automl.loop import start, total_steps
from automl.runtime import Runtime
from automl.step import WARM_UP, choose, make_step
from automl.tasks import Task, open_task
from search.config import Model, TrialConfig

PAIRS = (5, 31)  # at least and at most
PRECISE = 0.02  # half the width of the interval, as a part of the pace, at which no more pairs are needed
SHARE = 0.05  # of the time of the training, that more than the least pairs may take
BLOCK = 0.01  # seconds that a timing on a GPU takes at least, by repeating the step
FORMAT = 1  # of the cached files


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The costs of a configuration.

    params: numbers that are learned. macs: multiply-adds of a forward pass of one input.
    memory: bytes at the peak of a training step: on a GPU what is allocated; on a CPU weights, gradients,
        the optimiser's state and what the forward pass keeps for the backward pass.
    latency: ms of a forward pass of one input, the median.
    pace, pace_low, pace_high: the ratio of step times to the baseline's, with its 95 % interval.
    step: seconds of a training step of the baseline, the median.
    """

    params: int
    macs: int
    memory: int
    latency: float
    pace: float
    pace_low: float
    pace_high: float
    step: float

    def to_json(self) -> dict[str, float]:
        return asdict(self)


def measure(config: TrialConfig, reference: Model, runtime: Runtime) -> Facts:
    """The facts of `config` on this device, with the pace against the plain model `reference`.

    Measured once for an architecture, batch and device: later trials and searches on this machine, as long
    as its cache stays, get the same numbers. Raises torch.OutOfMemoryError when a step does not fit.
    """
    # One worker's part of the batch, without the others: what is exchanged is the same for both.
    batch = max(2, config.training.batch_size // runtime.workers)
    config = config.change(training={"batch_size": batch}, seed=0)
    runtime = replace(runtime, rank=0, workers=1)
    classes = len(open_task(config, runtime).labels)
    file = cache_root() / "facts" / f"{_key(config, reference, runtime, classes)}.json"
    found: list[Facts] = []

    def make(path: Path) -> None:
        found.append(_measure(config, reference, runtime))
        path.write_text(json.dumps(found[0].to_json()))

    once(file, make)
    return found[0] if found else Facts(**json.loads(file.read_text()))


def _measure(config: TrialConfig, reference: Model, runtime: Runtime) -> Facts:
    task = open_task(config, runtime)
    memory = step_memory(task)  # first: what does not fit shows here
    model = task.model().eval()
    plain = replace(reference, placement={})
    if config.model == plain:
        step = statistics.median(Stepper(task).seconds() for _ in range(PAIRS[0]))
        pace = (1.0, 1.0, 1.0)
    else:
        pace, step = measure_pace(task, open_task(replace(config, model=plain), runtime))
    one = task.example(1)
    return Facts(
        params=sum(p.numel() for p in model.parameters()),
        macs=count_macs(model, one),
        memory=memory,
        latency=measure_latency(model, one, runtime),
        pace=pace[0],
        pace_low=pace[1],
        pace_high=pace[2],
        step=step,
    )


def _key(config: TrialConfig, reference: Model, runtime: Runtime, classes: int) -> str:
    """Of everything that decides how large the model and how fast a step is."""
    name = torch.cuda.get_device_name(runtime.device) if runtime.device.type == "cuda" else processor()
    training = config.training
    about = [
        FORMAT,
        config.task,
        config.to_json()["model"],
        [reference.backbone, reference.width, classes],
        [config.data.source, config.data.size, training.batch_size, training.optimizer, training.mixup > 0],
        [str(runtime.dtype), choose(runtime, 10**9), runtime.share],
        [name, torch.get_num_threads(), torch.__version__],
    ]
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:32]


def processor() -> str:
    """The name of the CPU, as far as it is known."""
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":")[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return "cpu"


def count_macs(model: nn.Module, one: Tensor) -> int:
    """Multiply-adds of one forward pass: matrix products, convolutions and attention."""
    # The counter and parametrised weights do not go together in inference mode.
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(one)
    return int(counter.get_total_flops()) // 2


def measure_latency(model: nn.Module, one: Tensor, runtime: Runtime) -> float:
    """The median time of a forward pass in ms."""

    @torch.inference_mode()
    def forward() -> None:
        with runtime.autocast():
            model(one)

    for _ in range(3):
        forward()
    return 1e3 * statistics.median(_seconds(forward, runtime) for _ in range(15))


def step_memory(task: Task) -> int:
    """Bytes at the peak of one training step at full batch size. Also runs one batch of validation."""
    runtime = task.runtime
    cuda = runtime.device.type == "cuda"
    batch = next(iter(task.batches(0)))
    if cuda:
        _release(runtime)
        torch.cuda.reset_peak_memory_stats(runtime.device)
        before = torch.cuda.memory_allocated(runtime.device)
    state = start(task)
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


class Stepper:
    """Training steps of a new model on one batch, warmed up, to be timed."""

    def __init__(self, task: Task) -> None:
        self.runtime = task.runtime
        self.batch = next(iter(task.batches(0)))
        state = start(task)
        state.model.train()
        self.step = make_step(task, state.model, state.optimizer, state.scaler)
        cuda = self.runtime.device.type == "cuda"
        for _ in range(WARM_UP + 1 if cuda else 2):  # on a GPU the last one may capture
            self()
        self.repeats = max(1, round(BLOCK / _seconds(self, self.runtime))) if cuda else 1

    def __call__(self) -> None:
        self.step(self.batch, 1e-6)

    def seconds(self) -> float:
        """Of one step."""

        def block() -> None:
            for _ in range(self.repeats):
                self()

        return _seconds(block, self.runtime) / self.repeats


def measure_pace(task: Task, reference: Task) -> tuple[tuple[float, float, float], float]:
    """How many times longer a step of `task` takes than one of `reference`; and seconds of the latter.

    The median of pairs, with its 95 % interval.
    """
    ours, theirs = Stepper(task), Stepper(reference)
    ratios: list[float] = []
    baseline: list[float] = []
    begun = time.perf_counter()
    least, most = PAIRS
    while len(ratios) < most:
        first = ours.seconds()
        baseline.append(theirs.seconds())
        ratios.append(first / baseline[-1])
        if len(ratios) >= least:
            middle, low, high = interval(ratios)
            planned = statistics.median(baseline) * total_steps(reference)
            if high - low < 2 * PRECISE * middle or time.perf_counter() - begun > SHARE * planned:
                break
    del ours, theirs
    _release(task.runtime)
    return interval(ratios), statistics.median(baseline)


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The median with its distribution-free 95 % interval, from the ranks that the binomial gives.

    With fewer than six values, the interval is their whole range (94 % for five).
    """
    ordered = sorted(values)
    rank = max(1, int(binom.ppf(0.025, len(ordered), 0.5)))
    return statistics.median(ordered), ordered[rank - 1], ordered[-rank]


def _seconds(run: Callable[[], object], runtime: Runtime) -> float:
    cuda = runtime.device.type == "cuda"
    if cuda:
        torch.cuda.synchronize(runtime.device)
    begun = time.perf_counter()
    run()
    if cuda:
        torch.cuda.synchronize(runtime.device)
    return time.perf_counter() - begun


def _release(runtime: Runtime) -> None:
    gc.collect()
    if runtime.device.type == "cuda":
        torch.cuda.empty_cache()

"""The time ratio: the epoch time of a trial divided by the baseline's. Equal time is based on it.

Both epochs have the same images, so the ratio compares the time for each trained image. For example, a batch
of 32 that uses a machine less well than one of 64 has a ratio above 1, whatever its steps take. An epoch
consists of its training steps, including their data, and its pass over the validation split.

Steps of the two models are timed in turn, A B B A, on a timer that is robust to other load. Remaining load
affects both steps of a pair alike, and the trimmed mean of the pairs' ratios ignores outliers. Ratios of
minima or of lower quartiles spread two to three times as wide.

A ratio is accepted if its interval is within 3 % either way. If the time allowed for measuring does not
suffice, the ratio is partly estimated from operation counts, flagged (`estimated`), and not cached. The
timings are cached, so that the next trial of the same architecture continues from there, within the time
allowed for its own training.

The estimate is the number of operators, multiply-adds and bytes, times unit costs. Three small kernels
measure these on this machine (the lower quartile of their runs), which takes a few hundredths of a second. It
ignores how well an operator uses the machine. On one core of a Xeon such a ratio was within 3 % for one small
module and 10 % too low for twice the depth. For multi-head attention with narrow heads it was half the true
value.
"""

import json
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import islice
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from automl.config.device import is_gpu
from automl.config.runtime import Runtime
from automl.costs.trimmed_mean import LEAST, trimmed_mean
from automl.task import Task
from automl.training.clock import elapsed, seconds, time_in_turn, time_lower_quartiles, time_rounds
from automl.training.loop import endless_batches, start
from automl.training.step import Step, make_step
from backbones import call
from backbones.torch_internals import TorchDispatchMode, tree_leaves

# Operators that return a view and move no data.
VIEWS = {"view", "_unsafe_view", "reshape", "t", "transpose", "permute", "expand", "slice", "select"}
VIEWS |= {"split", "unbind", "squeeze", "unsqueeze", "as_strided", "alias", "detach"}


@dataclass(frozen=True, kw_only=True)
class Work:
    """Amount of work.

    Attributes:
        operators: Number of kernel calls.
        flops: Operations of products and convolutions.
        bytes: Bytes read and written.
    """

    operators: float
    flops: float
    bytes: float

    def seconds(self, price: "Work") -> float:
        """Return the time [s] of this work if one unit of each kind takes `price` seconds."""
        # The terms are added, since small work, as on a CPU, does not overlap.
        return self.operators * price.operators + self.flops * price.flops + self.bytes * price.bytes

    def __add__(self, other: "Work") -> "Work":
        return Work(
            operators=self.operators + other.operators,
            flops=self.flops + other.flops,
            bytes=self.bytes + other.bytes,
        )

    def __mul__(self, times: float) -> "Work":
        return Work(operators=times * self.operators, flops=times * self.flops, bytes=times * self.bytes)


def count_work(run: Callable[[], object]) -> Work:
    """Count the work of calling `run`, including a backward pass and an optimiser step."""
    with _Calls() as calls, FlopCounterMode(display=False) as counter:
        run()
    return Work(operators=calls.operators, flops=float(counter.get_total_flops()), bytes=calls.bytes)


class _Calls(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operators = self.bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        self.operators += 1
        if func.overloadpacket.__name__ not in VIEWS:
            tensors = (leaf for leaf in tree_leaves((args, kwargs or {}, output)) if isinstance(leaf, Tensor))
            self.bytes += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return output


@cache
def measure_unit_costs(runtime: Runtime) -> Work:
    """Measure the time [s] of one operator, one flop and one byte on this device, in training precision."""
    device, dtype = runtime.device, runtime.dtype
    small_tensor = torch.zeros(16, device=device)
    large_tensor = torch.zeros(2**20, device=device)
    images = torch.randn(64, 64, 16, 16, device=device, dtype=dtype).to(memory_format=torch.channels_last)
    weights = torch.randn(64, 64, 3, 3, device=device, dtype=dtype).to(memory_format=torch.channels_last)
    flops = 2 * 64 * 16**2 * 64**2 * 9

    def add_repeatedly() -> None:
        for _ in range(100):
            small_tensor.add(1.0)

    runs = [add_repeatedly, lambda: F.conv2d(images, weights, padding=1), lambda: F.relu(large_tensor)]
    with torch.no_grad():
        operators, convolution, relu = time_lower_quartiles(runs, runtime, 30)
    return Work(operators=operators / 100, flops=convolution / flops, bytes=relu / (2 * 4 * 2**20))


# Half width of the interval, relative to the ratio, at which measuring ends and up to which it is accepted.
PRECISE, BELIEVED = 0.02, 0.03
ROUND = 4  # pairs between two checks of the interval; there are at least `LEAST`
# Pairs of validation passes in the first round. Later rounds have one, as validation is short.
VALIDATIONS = 3
MEASURING_FRACTION = 0.05  # maximum time of measuring, relative to the training's own time
ALLOWED = 1.0  # time that the first measurement of an architecture may take in any case [s]
ERROR = 0.1  # standard deviation of the logarithm of a ratio of counted work
COMPARING = 20.0  # time after which a comparison of two functions ends [s]
BLOCK = 0.01  # minimum duration of a timing on a GPU, reached by repeating the step [s]


_BASELINES: dict[str, Work] = {}  # work of an epoch, by configuration and runtime


@dataclass(frozen=True, kw_only=True)
class TimeRatio:
    """Time ratio with its 95 % interval. With few pairs it is their range.

    Attributes:
        ratio: Epoch time of the trial divided by the baseline's.
        estimated: Whether the ratio is partly estimated from operation counts, since its interval was too
            wide. The interval is then the measured one.
        validation: Fraction of the trial's epoch that its validation takes.
        epoch: Time of the trial's epoch [s].
    """

    ratio: float
    low: float
    high: float
    estimated: bool
    validation: float
    epoch: float


def count_repeats(run: Callable[[], object], runtime: Runtime) -> int:
    """Return how often a timing repeats `run`: once on a CPU, and on a GPU until it takes `BLOCK`."""
    if not is_gpu(runtime.device):
        return 1
    for _ in range(2):  # The first loads kernels.
        run()
    return max(1, round(BLOCK / seconds(run, runtime)))


def repeated_seconds(run: Callable[[], object], runtime: Runtime, repeats: int) -> float:
    """Return the time [s] of one call of `run`, over `repeats` of them."""

    def block() -> None:
        for _ in range(repeats):
            run()

    return seconds(block, runtime) / repeats


def compare_steps(runs: Sequence[Callable[[], object]], runtime: Runtime) -> TimeRatio:
    """Time two steps in turn until the interval of their ratio is narrow, or `COMPARING` has passed.

    The ratio is that of the second step to the first one, `epoch` is the time of the first one, and
    `estimated` is true if the interval is too wide.
    """
    start_time, pairs = elapsed(runtime), list[Sequence[float]]()
    repeats = count_repeats(runs[0], runtime)
    rounds = time_in_turn([partial(repeated_seconds, run, runtime, repeats) for run in runs])
    while True:
        pairs.extend(islice(rounds, LEAST))
        ratio, low, high = interval([second / first for first, second in pairs])
        step = statistics.quantiles([first for first, _ in pairs], n=4)[0]
        times = TimeRatio(ratio=ratio, low=low, high=high, estimated=False, validation=0.0, epoch=step)
        if _width(times) <= PRECISE or elapsed(runtime) - start_time > COMPARING:
            return replace(times, estimated=_width(times) > BELIEVED)


class Epoch:
    """Epoch of a task, whose training steps and validation passes can be timed. A model of None is built.

    Attributes:
        steps: Number of training steps in an epoch.
        passes: Number of validation passes in an epoch.
        repeats: Number of repetitions in one timing.
    """

    def __init__(self, task: Task, model: nn.Module | None = None) -> None:
        self.task, self.runtime = task, task.runtime
        self.steps = task.steps()
        self.inputs = 2 * task.config.training.batch_size  # Number of inputs of a validation pass.
        # A training function validates its model itself, which is not timed.
        self.passes = -(-task.size("validation") // self.inputs)
        self.state = start(task, model)
        self._step = make_step(task, self.state.model, self.state.optimizer, self.state.scaler)
        self._batches = endless_batches(task)
        self._example = task.example(min(self.inputs, task.size("validation"))) if self.passes else ()
        while not self._step.is_settled:  # It measures, compiles or captures.
            self.step()
        self.repeats = count_repeats(self.step, self.runtime)

    def step(self) -> None:
        """Run a training step, including the creation of its batch."""
        self.task.set_training(self.state.model)
        self._step(next(self._batches), 1e-6)
        if self.state.average is not None:
            self.state.average.update(self.state.model, step=1)

    @torch.no_grad()  # Counting operators fails with parametrised weights in inference mode.
    def validate(self) -> None:
        """Run the model on a validation batch."""
        self.state.model.eval()
        with self.runtime.autocast():
            call(self.state.model, self._example)

    def seconds_of(self, run: Callable[[], object]) -> float:
        """Return the time [s] of `step` or `validate`."""
        return repeated_seconds(run, self.runtime, self.repeats)

    def work(self) -> Work:
        """Count the work of the whole epoch on one step and one pass, operator by operator."""
        state = self.state
        self._step = Step(self.task, state.model, state.optimizer, state.scaler)
        work = count_work(self.step) * self.steps
        return work + count_work(self.validate) * self.passes if self.passes else work


@dataclass(frozen=True)
class Timings:
    """Times [s] of the trial and of the baseline, measured in turn.

    Attributes:
        work: Counted work of an epoch of the trial and of the baseline. Empty if not counted.
    """

    steps: list[tuple[float, float]] = field(default_factory=list)
    validations: list[tuple[float, float]] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)


def measure_time_ratio(
    task: Task, baseline: Task, timings: Timings, *, model: nn.Module | None = None, floor: float = 0.0
) -> TimeRatio:
    """Measure the time ratio of `task` to `baseline`, which has the same images and runtime.

    Args:
        timings: Earlier timings of the same two models. New ones are added. If the time allowed for measuring
            did not suffice, a later trial continues from them.
        model: The task's model. Built if None.
        floor: Least ratio. 1 if one model is the other with modules added, where less is a wrong measurement.
    """
    start_time, continues = elapsed(task.runtime), bool(timings.steps)
    epoch, baseline_epoch = Epoch(task, model), Epoch(baseline)
    steps = time_in_turn([partial(each.seconds_of, each.step) for each in (epoch, baseline_epoch)])
    passes = time_in_turn([partial(each.seconds_of, each.validate) for each in (epoch, baseline_epoch)])
    while True:
        is_later_round = bool(timings.steps)
        timings.steps.extend((first, second) for first, second in islice(steps, ROUND))
        count_of_passes = (1 if is_later_round else VALIDATIONS) if epoch.passes else 0
        timings.validations.extend((first, second) for first, second in islice(passes, count_of_passes))
        measured = _ratio(epoch, baseline_epoch, timings, floor=floor)
        fraction = MEASURING_FRACTION * baseline.config.training.epochs * measured.epoch / measured.ratio
        allowed = fraction if continues else max(fraction, ALLOWED)
        enough = len(timings.steps) >= LEAST
        if (enough and _width(measured) <= PRECISE) or elapsed(task.runtime) - start_time > allowed:
            break
    if enough and _width(measured) <= BELIEVED:
        return measured
    if not timings.work:
        timings.work.extend([epoch.work(), _work_of_baseline(baseline_epoch)])
    work, baseline_work = timings.work
    return _combine_with_work(measured, work, baseline_work, measure_unit_costs(epoch.runtime))


def _ratio(epoch: Epoch, baseline: Epoch, timings: Timings, *, floor: float) -> TimeRatio:
    training = baseline.steps * statistics.median(second for _, second in timings.steps)
    passes, validation = (0.0, 0.0, 0.0), 0.0
    if baseline.passes:
        validation = baseline.passes * statistics.median(second for _, second in timings.validations)
        passes = interval([first / second for first, second in timings.validations])
    duration = training + validation
    of_steps = epoch.steps / baseline.steps * training / duration
    of_passes = epoch.passes / max(1, baseline.passes) * validation / duration
    steps = interval([first / second for first, second in timings.steps])
    ratio, low, high = (max(floor, of_steps * s + of_passes * v) for s, v in zip(steps, passes, strict=True))
    validation = min(1.0, of_passes * passes[0] / ratio)
    return TimeRatio(
        ratio=ratio, low=low, high=high, estimated=False, validation=validation, epoch=ratio * duration
    )


def _combine_with_work(measured: TimeRatio, work: Work, baseline: Work, price: Work) -> TimeRatio:
    """Average the measured ratio and the ratio of counted work, each weighted by its precision."""
    guess = work.seconds(price) / baseline.seconds(price)
    deviation = (math.log(measured.high) - math.log(measured.low)) / (2 * 1.96)
    weight = deviation**2 / (deviation**2 + ERROR**2)
    ratio = measured.ratio ** (1 - weight) * guess**weight
    return replace(measured, ratio=min(max(ratio, measured.low), measured.high), estimated=True)


def measure_own_epoch(task: Task, model: nn.Module | None = None) -> TimeRatio:
    """Return the time ratio 1 of the baseline itself, with the measured time of its epoch."""
    epoch = Epoch(task, model)
    training, validation = (
        count * statistics.median(*zip(*time_rounds([partial(epoch.seconds_of, run)], ROUND), strict=True))
        if count
        else 0.0
        for count, run in ((epoch.steps, epoch.step), (epoch.passes, epoch.validate))
    )
    duration = training + validation
    return TimeRatio(
        ratio=1.0, low=1.0, high=1.0, estimated=False, validation=validation / duration, epoch=duration
    )


def _work_of_baseline(epoch: Epoch) -> Work:
    """Return the work of a baseline's epoch, counted once in a process, which measures many trials."""
    key = json.dumps([epoch.task.config.to_json(), str(epoch.runtime)], sort_keys=True)
    if key not in _BASELINES:
        _BASELINES[key] = epoch.work()
    return _BASELINES[key]


def _width(time_ratio: TimeRatio) -> float:
    """Return the larger distance of the interval's ends from the ratio, relative to the ratio."""
    return max(time_ratio.high - time_ratio.ratio, time_ratio.ratio - time_ratio.low) / time_ratio.ratio


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the trimmed mean of ratios with its 95 % interval, or their median and range if they are few."""
    if len(values) < LEAST:
        return statistics.median(values), min(values), max(values)
    mean, low, high = map(math.exp, trimmed_mean([math.log(value) for value in values]))
    return mean, low, high

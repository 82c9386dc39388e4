"""The time ratio: the epoch time of a trial divided by the baseline's. Equal time is based on it.

Both epochs have the same images, so the ratio compares the time for each trained image. For example, a batch
of 32 that uses a machine less well than one of 64 has a ratio above 1, whatever its steps take. An epoch
consists of its training steps, including their data, and its pass over the validation split.

Steps of the two models are timed in turn, A B B A, on a timer that is robust to other load. Remaining load
affects both steps of a pair alike, and the trimmed mean of the pairs' ratios ignores outliers. Ratios of
minima or of lower quartiles spread two to three times as wide.

A ratio is accepted if its interval is within 3 % either way. If the time allowed for measuring does not
suffice, it is used all the same, flagged (`imprecise`), and not cached. The timings are cached, so that the
next trial of the same architecture continues from there, within the time allowed for its own training.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice

import torch
from torch import nn

from automl.config.device import is_gpu
from automl.config.runtime import Runtime
from automl.costs.trimmed_mean import LEAST, trimmed_mean
from automl.task import Task
from automl.training.clock import elapsed, seconds, time_in_turn, time_rounds
from automl.training.loop import endless_batches, start
from automl.training.step import make_step
from backbones import call

# Half width of the interval, relative to the ratio, at which measuring ends and up to which it is accepted.
PRECISE, BELIEVED = 0.02, 0.03
ROUND = 4  # pairs between two checks of the interval; there are at least `LEAST`
# Pairs of validation passes in the first round. Later rounds have one, as validation is short.
VALIDATIONS = 3
MEASURING_FRACTION = 0.05  # maximum time of measuring, relative to the training's own time
ALLOWED = 1.0  # time that the first measurement of an architecture may take in any case [s]
COMPARING = 20.0  # time after which a comparison of two functions ends [s]
BLOCK = 0.01  # minimum duration of a timing on a GPU, reached by repeating the step [s]


@dataclass(frozen=True, kw_only=True)
class TimeRatio:
    """Time ratio with its 95 % interval. With few pairs it is their range.

    Attributes:
        ratio: Epoch time of the trial divided by the baseline's.
        imprecise: Whether its interval is too wide.
        validation: Fraction of the trial's epoch that its validations take.
        epoch: Time of the trial's epoch [s].
    """

    ratio: float
    low: float
    high: float
    imprecise: bool
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
    `imprecise` is true if the interval is too wide.
    """
    start_time, pairs = elapsed(runtime), list[Sequence[float]]()
    repeats = count_repeats(runs[0], runtime)
    rounds = time_in_turn([partial(repeated_seconds, run, runtime, repeats) for run in runs])
    while True:
        pairs.extend(islice(rounds, LEAST))
        ratio, low, high = interval([second / first for first, second in pairs])
        step = statistics.quantiles([first for first, _ in pairs], n=4)[0]
        times = TimeRatio(ratio=ratio, low=low, high=high, imprecise=False, validation=0.0, epoch=step)
        if _width(times) <= PRECISE or elapsed(runtime) - start_time > COMPARING:
            return replace(times, imprecise=_width(times) > BELIEVED)


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
        self.passes = task.runtime.validations * -(-task.size("validation") // self.inputs)
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

    @torch.no_grad()
    def validate(self) -> None:
        """Run the model on a validation batch."""
        self.state.model.eval()
        with self.runtime.autocast():
            call(self.state.model, self._example)

    def seconds_of(self, run: Callable[[], object]) -> float:
        """Return the time [s] of `step` or `validate`."""
        return repeated_seconds(run, self.runtime, self.repeats)


@dataclass(frozen=True)
class Timings:
    """Times [s] of the trial and of the baseline, measured in turn."""

    steps: list[tuple[float, float]] = field(default_factory=list)
    validations: list[tuple[float, float]] = field(default_factory=list)


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
    return replace(measured, imprecise=not enough or _width(measured) > BELIEVED)


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
        ratio=ratio, low=low, high=high, imprecise=False, validation=validation, epoch=ratio * duration
    )


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
        ratio=1.0, low=1.0, high=1.0, imprecise=False, validation=validation / duration, epoch=duration
    )


def _width(time_ratio: TimeRatio) -> float:
    """Return the larger distance of the interval's ends from the ratio, relative to the ratio."""
    return max(time_ratio.high - time_ratio.ratio, time_ratio.ratio - time_ratio.low) / time_ratio.ratio


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the trimmed mean of ratios with its 95 % interval, or their median and range if they are few."""
    if len(values) < LEAST:
        return statistics.median(values), min(values), max(values)
    mean, low, high = map(math.exp, trimmed_mean([math.log(value) for value in values]))
    return mean, low, high

"""The time ratio: the epoch time of a trial relative to the baseline's. Equal time is based on it.

Both epochs are of the same images, so the ratio is of time for each image that is trained: a batch of 32 that
uses a machine worse than one of 64 has a ratio above 1, whatever its steps take. An epoch is its training
steps, with the data that they take, and its pass over the validation split. Steps of the two are timed in
turn, A B B A, on a timer that is robust to other load; what is left of the load affects both of a pair alike,
and the median of the pairs' ratios ignores outliers. Measured beside two busy processes on two cores:
two equal models gave 0.995, one with a module 1.06 (1.05 alone), and ratios of minima or lower quartiles
spread two to three times as wide.

A ratio is accepted when its interval is within 3 % either way. Where that is not reached in the time that
measuring may take, the ratio is partly estimated from operation counts, flagged (`counted`), and not cached;
the timings are, so that the next trial of the same architecture continues from there,
for its part of the training's time alone.
"""

import json
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

import torch
from scipy.special import bdtr  # scipy.stats takes each process of a trial more than a second to import
from torch import nn

from automl.config.device import is_gpu
from automl.costs.work import Work, count_work, prices
from automl.tasks import Batch, Task
from automl.training.clock import elapsed, seconds
from automl.training.loop import start
from automl.training.step import Step, make_step
from backbones import call

PRECISE = 0.02  # half the width of the interval, as a part of the ratio, at which measuring ends
BELIEVED = 0.03  # and up to which the ratio is used
ROUND, LEAST = 4, 8  # pairs from one look at the interval to the next, and before it is believed
VALIDATIONS = 3  # pairs of validation passes at first, and then one a round: a small part of an epoch
MEASURING_FRACTION = 0.05  # of the training's own time that measuring may take
ALLOWED = 1.0  # seconds that the first of an architecture may take in any case
ERROR = 0.1  # of the logarithm of a ratio of counted work: the standard deviation
BLOCK = 0.01  # seconds that a timing on a GPU takes at least, by repeating the step


_BASELINES: dict[str, Work] = {}  # of their epochs, by configuration and runtime


@dataclass(frozen=True, kw_only=True)
class TimeRatio:
    """A time ratio with its 95 % interval, or that of fewer pairs as `interval` has it.

    counted: it is partly estimated from operation counts, since its interval was too wide; the interval is
    then the measured one. validation: the part of the trial's epoch that is its validation. epoch: seconds of
    the trial's epoch.
    """

    ratio: float
    low: float
    high: float
    counted: bool
    validation: float
    epoch: float


class Epoch:
    """An epoch in parts that can be timed: training steps and validation passes.

    model: the task's, where it has been made. steps, passes: of each in an epoch. warm_up: run a few first.
    """

    def __init__(self, task: Task, model: nn.Module | None = None, *, warm_up: bool = True) -> None:
        self.task, self.runtime = task, task.runtime
        self.steps = task.steps()
        self.inputs = 2 * task.config.training.batch_size  # of a validation pass
        self.passes = -(-task.size("validation") // self.inputs)
        self.state = start(task, model)
        self._step = make_step(task, self.state.model, self.state.optimizer, self.state.scaler)
        self._batches = _endless(task)
        self._example = task.example(min(self.inputs, task.size("validation")))
        self.repeats = 1
        if not warm_up:
            return
        gpu = is_gpu(self.runtime.device)
        for _ in range(7 if gpu else 2):  # on a GPU `--compile graphs` captures among them
            self.step()
        self.validate()
        self.repeats = max(1, round(BLOCK / seconds(self.step, self.runtime))) if gpu else 1

    def step(self) -> None:
        """A training step, with the making of its batch."""
        self.state.model.train()
        self._step(next(self._batches), 1e-6)
        if self.state.average is not None:
            self.state.average.update(self.state.model, 1)

    @torch.no_grad()  # what counts operators does not go with parametrised weights in inference mode
    def validate(self) -> None:
        """The model's part of a validation pass."""
        self.state.model.eval()
        with self.runtime.autocast():
            call(self.state.model, self._example)

    def seconds_of(self, part: Callable[[], object]) -> float:
        """Of `step` or `validate`."""

        def block() -> None:
            for _ in range(self.repeats):
                part()

        return seconds(block, self.runtime) / self.repeats

    def work(self) -> Work:
        """Of the whole epoch, counted on one step and one pass, operator by operator."""
        state = self.state
        self._step = Step(self.task, state.model, state.optimizer, state.scaler)
        return count_work(self.step) * self.steps + count_work(self.validate) * self.passes


def _endless(task: Task) -> Iterator[Batch]:
    for epoch in count():
        yield from task.batches(epoch)


@dataclass(frozen=True)
class Timings:
    """Seconds of ours and of the baseline's, timed in turn: of training steps, and of validation passes.

    work: of an epoch of ours and of the baseline's, where it has been counted.
    """

    steps: list[tuple[float, float]] = field(default_factory=list)
    validations: list[tuple[float, float]] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)


def measure_time_ratio(
    task: Task,
    baseline: Task,
    timings: Timings,
    *,
    model: nn.Module | None = None,
    at_least_one: bool = False,
) -> TimeRatio:
    """The time ratio of `task` beside `baseline`, which has the same images and the same runtime.

    model: the task's, where it has been made.
    timings: of the same two, as far as there are any from before; those of now are added. Where the time that
        measuring may take was not enough, another trial continues from there, at another moment.
    at_least_one: one model is the other with modules added, so that a ratio below 1 is an error of
        measurement.
    """
    begun, known = elapsed(task.runtime), bool(timings.steps)
    ours, theirs = Epoch(task, model), Epoch(baseline)
    while True:
        again = bool(timings.steps)
        for _ in range(ROUND):
            timings.steps.append(_in_turn(ours, theirs, "step", len(timings.steps)))
        for _ in range(1 if again else VALIDATIONS):
            timings.validations.append(_in_turn(ours, theirs, "validate", len(timings.validations)))
        found = _ratio(ours, theirs, timings, floor=1.0 if at_least_one else 0.0)
        part = MEASURING_FRACTION * baseline.config.training.epochs * found.epoch / found.ratio
        allowed = part if known else max(part, ALLOWED)
        enough = len(timings.steps) >= LEAST
        if (enough and _width(found) <= PRECISE) or elapsed(task.runtime) - begun > allowed:
            break
    if enough and _width(found) <= BELIEVED:
        return found
    if not timings.work:
        timings.work.extend([ours.work(), _work_of_baseline(theirs)])
    mine, other = timings.work
    return _with_counted(found, mine, other, prices(ours.runtime))


def _in_turn(ours: Epoch, theirs: Epoch, part: str, turn: int) -> tuple[float, float]:
    """A pair of timings, ours first and theirs first by turns."""
    first, second = (theirs, ours) if turn % 2 else (ours, theirs)
    one, other = (epoch.seconds_of(getattr(epoch, part)) for epoch in (first, second))
    return (other, one) if turn % 2 else (one, other)


def _ratio(ours: Epoch, theirs: Epoch, timings: Timings, *, floor: float) -> TimeRatio:
    """What the timings so far come to."""
    training, validation = (
        times * statistics.median(second for _, second in pairs)
        for times, pairs in ((theirs.steps, timings.steps), (theirs.passes, timings.validations))
    )
    epoch = training + validation
    of_steps = ours.steps / theirs.steps * training / epoch
    of_passes = ours.passes / theirs.passes * validation / epoch
    steps, passes = (
        interval([first / second for first, second in pairs])
        for pairs in (timings.steps, timings.validations)
    )
    ratio, low, high = (max(floor, of_steps * s + of_passes * v) for s, v in zip(steps, passes, strict=True))
    return TimeRatio(
        ratio=ratio,
        low=low,
        high=high,
        counted=False,
        validation=min(1.0, of_passes * passes[0] / ratio),
        epoch=ratio * epoch,
    )


def _with_counted(found: TimeRatio, ours: Work, theirs: Work, price: Work) -> TimeRatio:
    """The time ratio by counted work and by what was measured, each with the weight of its precision."""
    guess = ours.seconds(price) / theirs.seconds(price)
    measured = (math.log(found.high) - math.log(found.low)) / (2 * 1.96)
    weight = measured**2 / (measured**2 + ERROR**2)
    ratio = found.ratio ** (1 - weight) * guess**weight
    return replace(found, ratio=min(max(ratio, found.low), found.high), counted=True)


def own_time_ratio(task: Task, model: nn.Module | None = None) -> TimeRatio:
    """Of the baseline itself: 1, with the time that its epoch takes. model: as in `measure_time_ratio`."""
    one = Epoch(task, model)
    training, validation = (
        times * statistics.median(one.seconds_of(part) for _ in range(ROUND))
        for times, part in ((one.steps, one.step), (one.passes, one.validate))
    )
    epoch = training + validation
    return TimeRatio(ratio=1.0, low=1.0, high=1.0, counted=False, validation=validation / epoch, epoch=epoch)


def _work_of_baseline(epoch: Epoch) -> Work:
    """Counted once in a process, which measures many trials beside it."""
    key = json.dumps([epoch.task.config.to_json(), str(epoch.runtime)], sort_keys=True)
    if key not in _BASELINES:
        _BASELINES[key] = epoch.work()
    return _BASELINES[key]


def _width(time_ratio: TimeRatio) -> float:
    """How far the interval reaches from the ratio, as a part of it."""
    return max(time_ratio.high - time_ratio.ratio, time_ratio.ratio - time_ratio.low) / time_ratio.ratio


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The median with its distribution-free 95 % interval, from the ranks that the binomial gives.

    With fewer than six values, the interval is their whole range (94 % for five, 88 % for four,
    75 % for three).
    """
    ordered = sorted(values)
    rank = max(1, next(k for k in count() if bdtr(k, len(ordered), 0.5) >= 0.025))
    return statistics.median(ordered), ordered[rank - 1], ordered[-rank]

"""Timers that are robust to other load: processor time on a CPU, events on a GPU.

Wall time includes waiting for the processor, so it depends on other processes. Processor time does not run
while a thread waits. Other load still acts through shared caches and frequency, which affect two models alike
if they are timed in turn.

`time_in_turn` times everything that is compared. A first run allocates memory and selects kernels: a first
step of ResNet-50 took twice as long as later ones. So it does not count.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import cycle, islice

import torch

from automl.config.device import event_seconds, is_gpu
from automl.config.runtime import Runtime

Timing = Callable[[], float]  # Runs something and returns the time that it took.

LEAST, SECONDS = 5, 3.0  # minimum number of rounds, and the time [s] after which no further one begins


def processor_time() -> float:
    """Return the processor time [s] of this thread, or of the process if it computes in several threads.

    On a CPU, PyTorch computes in the calling thread, backward passes too, and distributes operators over
    further threads if it may use several.
    """
    return time.thread_time() if torch.get_num_threads() == 1 else time.process_time()


class Stopwatch:
    """Wall time and processor time [s] since its start, beside what was spent before."""

    def __init__(self, seconds: float = 0.0, processor_seconds: float = 0.0) -> None:
        self._start = time.perf_counter() - seconds, processor_time() - processor_seconds

    def read(self) -> tuple[float, float]:
        """Return the wall time and the processor time [s]."""
        return time.perf_counter() - self._start[0], processor_time() - self._start[1]


def elapsed(runtime: Runtime) -> float:
    """Return the time [s] since an arbitrary start, on the timer that limits measuring."""
    return processor_time() if runtime.device.type == "cpu" else time.perf_counter()


def seconds(run: Callable[[], object], runtime: Runtime) -> float:
    """Return the time [s] of calling `run`: processor time on a CPU, time between two events on a GPU."""
    if is_gpu(runtime.device):
        return event_seconds(run, runtime.device)
    start = processor_time()
    run()
    return processor_time() - start


def wall_seconds(run: Callable[[], object]) -> float:
    """Return the wall time [s] of calling `run`, which may compute in processes or threads of its own."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def time_lower_quartiles(runs: Sequence[Callable[[], object]], runtime: Runtime, times: int) -> list[float]:
    """Return the lower quartile [s] for each of `runs`, over up to `times` rounds of little interference."""
    rounds = time_rounds([partial(seconds, run, runtime) for run in runs], times)
    return [statistics.quantiles(column, n=4)[0] for column in zip(*rounds, strict=True)]


def time_rounds(timings: Sequence[Timing], most: int) -> list[Sequence[float]]:
    """Return up to `most` rounds of `time_in_turn`, but only `LEAST` if they take `SECONDS` or more."""
    rounds: list[Sequence[float]] = []
    for times in islice(time_in_turn(timings), most):
        rounds.append(times)
        if len(rounds) >= LEAST and sum(map(sum, rounds)) >= SECONDS:
            break
    return rounds


def time_in_turn(timings: Sequence[Timing]) -> Iterator[Sequence[float]]:
    """Yield rounds without end, each with the time of each timing. A first round warms up and does not count.

    Every second round is in reverse, so that a machine that becomes slower does not slow the last one most.
    """
    for timing in timings:
        timing()
    for step in cycle([1, -1]):
        yield [timing() for timing in timings[::step]][::step]

"""Timers that are robust to other load: processor time on a CPU, events on a GPU.

Wall time includes waiting for the processor, so it depends on other processes. Processor time does not run
while a thread waits; what is left of other load is shared caches and frequency, which affect two models alike
that are timed in turn.
"""

import statistics
import time
from collections.abc import Callable, Sequence

import torch

from automl.config.device import event_seconds, is_gpu
from automl.config.runtime import Runtime


def processor_time() -> float:
    """Seconds of processor time: of this thread where it computes alone, or of all threads of the process.

    PyTorch computes on a CPU in the thread that calls it, backward passes too, and shares operators out to
    others where it may have several.
    """
    return time.thread_time() if torch.get_num_threads() == 1 else time.process_time()


def elapsed(runtime: Runtime) -> float:
    """Seconds from an arbitrary start, on the timer that limits measuring."""
    return processor_time() if runtime.device.type == "cpu" else time.perf_counter()


def seconds(run: Callable[[], object], runtime: Runtime) -> float:
    """How long `run` takes: processor time on a CPU, the time between two events on a GPU."""
    if is_gpu(runtime.device):
        return event_seconds(run, runtime.device)
    start = processor_time()
    run()
    return processor_time() - start


def quick_quarter(run: Callable[[], object], runtime: Runtime, times: int) -> float:
    """The lower quartile of so many runs: the time with little interference."""
    return quick_quarters([run], runtime, times)[0]


def quick_quarters(runs: Sequence[Callable[[], object]], runtime: Runtime, times: int) -> list[float]:
    """`quick_quarter` of each, run in turn, so that what else the machine does slows them alike."""
    for run in runs:
        run()
    rounds = [[seconds(run, runtime) for run in runs] for _ in range(times)]
    return [statistics.quantiles(times_of_one, n=4)[0] for times_of_one in zip(*rounds, strict=True)]

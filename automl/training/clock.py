"""Timers that are robust to other load: processor time on a CPU, events on a GPU.

Wall time includes waiting for the processor, so it depends on other processes. Processor time does not run
while a thread waits. Other load still acts through shared caches and frequency, which affect two models alike
if they are timed in turn.
"""

import statistics
import time
from collections.abc import Callable, Sequence

import torch

from automl.config.device import event_seconds, is_gpu
from automl.config.runtime import Runtime


def processor_time() -> float:
    """Return the processor time [s] of this thread, or of the process if it computes in several threads.

    On a CPU, PyTorch computes in the calling thread, backward passes too, and distributes operators over
    further threads if it may use several.
    """
    return time.thread_time() if torch.get_num_threads() == 1 else time.process_time()


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


def time_lower_quartile(run: Callable[[], object], runtime: Runtime, times: int) -> float:
    """Return the lower quartile of the times [s] of so many runs, which have little interference."""
    return time_lower_quartiles([run], runtime, times)[0]


def time_lower_quartiles(runs: Sequence[Callable[[], object]], runtime: Runtime, times: int) -> list[float]:
    """Return the lower quartile for each of `runs`. They run in turn, so that other load slows them alike."""
    for run in runs:
        run()
    rounds = [[seconds(run, runtime) for run in runs] for _ in range(times)]
    return [statistics.quantiles(column, n=4)[0] for column in zip(*rounds, strict=True)]

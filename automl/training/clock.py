"""Times that a busy machine hardly moves.

On a CPU a wall clock tells what the neighbours do: beside two busy processes a step takes as long as they
leave it to wait. Processor time does not run while a thread waits, so what is left of the load are the caches
and the frequency that are shared with it, which meet two models alike that are timed in turn. On a GPU the
device's own events are read.
"""

import statistics
import time
from collections.abc import Callable

import torch

from automl.config.runtime import Runtime


def processor_time() -> float:
    """Seconds of processor time: of this thread where it computes alone, or of all threads of the process.

    PyTorch computes on a CPU in the thread that calls it, backward passes too, and shares operators out to
    others where it may have several.
    """
    return time.thread_time() if torch.get_num_threads() == 1 else time.process_time()


def elapsed(runtime: Runtime) -> float:
    """What has gone by, from any one moment on, on the clock that measuring is held to."""
    return processor_time() if runtime.device.type == "cpu" else time.perf_counter()


def seconds(run: Callable[[], object], runtime: Runtime) -> float:
    """How long `run` takes: processor time on a CPU, the time between two events on a GPU."""
    if runtime.device.type == "cuda":
        with torch.cuda.device(runtime.device):
            begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begun.record()
            run()
            ended.record()
            ended.synchronize()
        return float(begun.elapsed_time(ended)) / 1e3
    start = processor_time()
    run()
    return processor_time() - start


def quick_quarter(run: Callable[[], object], runtime: Runtime, times: int) -> float:
    """The lower quartile of so many runs: what one takes when little comes between."""
    run()
    return statistics.quantiles((seconds(run, runtime) for _ in range(times)), n=4)[0]

"""Latency and throughput of a deployed model on this machine."""

import platform
import statistics
import time
from dataclasses import dataclass
from importlib.metadata import version

import torch

from automl.config.device import processor
from automl.tasks.deployment import Arrays, Run, count_rows, iterate_batches

BATCH = 32  # batch size of the throughput measurement
ROUNDS = (5, 60)  # minimum and maximum number of timings
SECONDS = 3.0  # after this time and the minimum number, none is started


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Speed of a model. Values are medians.

    Attributes:
        latency: Latency of one input [ms].
        throughput: Inputs per second, in batches of `batch`.
        batch: Batch size of the throughput.
    """

    latency: float
    throughput: float
    batch: int


def measure_speed(run: Run, inputs: Arrays) -> Speed:
    """Measure the speed of a model on up to BATCH of the raw `inputs`."""
    batch, example = next(iterate_batches(inputs, BATCH)), next(iterate_batches(inputs, 1))
    return Speed(
        latency=1e3 * _median_seconds(run, example),
        throughput=count_rows(batch) / _median_seconds(run, batch),
        batch=count_rows(batch),
    )


def _median_seconds(run: Run, inputs: Arrays) -> float:
    run(inputs)  # the first run allocates memory and selects kernels
    times: list[float] = []
    begun = time.perf_counter()
    while len(times) < ROUNDS[0] or (len(times) < ROUNDS[1] and time.perf_counter() - begun <= SECONDS):
        start = time.perf_counter()
        run(inputs)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def machine() -> str:
    """Return the hardware of the measurement."""
    threads = torch.get_num_threads()
    return (
        f"{processor()}, {threads} {'thread' if threads == 1 else 'threads'}, {platform.system()} "
        f"{platform.machine()}, Python {platform.python_version()}, onnxruntime {version('onnxruntime')}"
    )

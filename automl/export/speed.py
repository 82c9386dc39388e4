"""Latency and throughput of a deployed model on this machine."""

import platform
import statistics
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version

import torch

from automl.config.device import processor
from automl.tasks.deployment import Arrays, Run, count_rows, iterate_batches
from automl.training.clock import time_rounds, wall_seconds

BATCH = 32  # batch size of the throughput measurement
ROUNDS = 60  # maximum number of timings


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
    rounds = time_rounds([partial(wall_seconds, partial(run, inputs))], ROUNDS)
    return statistics.median(seconds for (seconds,) in rounds)


def machine() -> str:
    """Return the hardware of the measurement."""
    threads = torch.get_num_threads()
    return (
        f"{processor()}, {threads} {'thread' if threads == 1 else 'threads'}, {platform.system()} "
        f"{platform.machine()}, Python {platform.python_version()}, onnxruntime {version('onnxruntime')}"
    )

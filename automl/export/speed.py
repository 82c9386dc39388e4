"""Latency and throughput of deployed models on this machine. Timings alternate, so that noise is shared."""

import platform
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version

import torch

from automl.config.device import processor
from automl.tasks.deployment import Arrays, Run, count_rows, iterate_batches
from automl.training.clock import time_rounds, wall_seconds

BATCH = 32  # batch size of the throughput measurement
ROUNDS = 60  # maximum number of rounds, each with one timing of each model


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Speed of a model. Values are medians of all rounds.

    Attributes:
        latency: Latency of one input [ms].
        throughput: Inputs per second, in batches of `batch`.
        batch: Batch size of the throughput.
        ratio: Latency divided by that of the first model in the same round.
    """

    latency: float
    throughput: float
    batch: int
    ratio: float


def measure_speed(models: Mapping[str, Run], inputs: Arrays) -> dict[str, Speed]:
    """Measure the speed of each model on up to BATCH of the raw `inputs`."""
    batch, example = next(iterate_batches(inputs, BATCH)), next(iterate_batches(inputs, 1))
    single, whole = _times(models, example), _times(models, batch)
    first = next(iter(single.values()))
    return {
        name: Speed(
            latency=1e3 * statistics.median(single[name]),
            throughput=count_rows(batch) / statistics.median(whole[name]),
            batch=count_rows(batch),
            ratio=statistics.median(a / b for a, b in zip(single[name], first, strict=True)),
        )
        for name in models
    }


def _times(models: Mapping[str, Run], inputs: Arrays) -> dict[str, list[float]]:
    rounds = time_rounds([partial(wall_seconds, partial(run, inputs)) for run in models.values()], ROUNDS)
    return dict(zip(models, map(list, zip(*rounds, strict=True)), strict=True))


def machine() -> str:
    """Return the hardware of the measurement."""
    threads = torch.get_num_threads()
    return (
        f"{processor()}, {threads} {'thread' if threads == 1 else 'threads'}, {platform.system()} "
        f"{platform.machine()}, Python {platform.python_version()}, onnxruntime {version('onnxruntime')}"
    )

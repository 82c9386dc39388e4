"""Device, precision, workers and validations of a training.

Results do not depend on them beyond rounding. Everything else is in the configuration.
"""

import ctypes
import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar, get_args

import torch
import torch.distributed as dist
from torch import Tensor

from automl.base.errors import unknown
from automl.config.device import configure, device_for, fast_dtype, is_gpu, with_index
from automl.config.search_options import Compile, Precision

T = TypeVar("T")

log = logging.getLogger("automl")

# Fraction of a shared GPU's memory that its trials may allocate. Their processes need the rest.
MEMORY_FRACTION = 0.9

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """Device and execution options of one process.

    Attributes:
        device: The device of the model. A GPU without an index is the current one.
        precision: Precision of the forward pass. Weights stay in float32. `auto` is bfloat16 if the device
            computes in it, float16 with a scaled loss on older GPUs, otherwise float32.
        compile: Execution of a training step; see `automl.training.step`.
        memory_fraction: Fraction of the device's memory that this process may allocate.
        rank: Number of this process among those that train the same model.
        workers: Number of these processes.
        validations: Number of validations in an epoch of training, after equal parts of its steps.
    """

    device: torch.device
    precision: Precision = "auto"
    compile: Compile = "auto"
    memory_fraction: float = 1.0
    rank: int = 0
    workers: int = 1
    validations: int = 1

    def __post_init__(self) -> None:
        for kind, value, choices in (
            ("precision", self.precision, get_args(Precision)),
            ("value of --compile", self.compile, get_args(Compile)),
        ):
            if value not in choices:
                raise unknown(kind, value, choices)
        object.__setattr__(self, "device", with_index(self.device))
        if is_gpu(self.device):
            configure(self.device, self.memory_fraction)
        else:
            keep_freed_memory()

    @property
    def dtype(self) -> torch.dtype:
        """Data type of the forward pass."""
        return fast_dtype(self.device) if self.precision == "auto" else DTYPES[self.precision]

    def autocast(self) -> AbstractContextManager[None]:
        """Run operations in the block in `dtype` where that is safe. float32 changes nothing."""
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32)

    def shard(self, indices: Tensor) -> Tensor:
        """Return this worker's part of `indices`."""
        return indices[self.rank :: self.workers]

    def total(self, values: Tensor) -> Tensor:
        """Return the sum of `values` over all workers."""
        if self.workers > 1:
            dist.all_reduce(values)
        return values

    def gather(self, value: T) -> list[T]:
        """Return the `value` of each worker, any object that can be pickled."""
        if self.workers == 1:
            return [value]
        values: list[Any] = [None] * self.workers
        dist.all_gather_object(values, value)
        return values


def memory_fraction(gpus: float) -> float:
    """Return the fraction of a GPU's memory that a process may allocate to which Ray assigned `gpus` GPUs."""
    return MEMORY_FRACTION * gpus if 0 < gpus < 1 else 1.0


def runtime_for(cpus: float, gpus: float, **options: Any) -> Runtime:
    """Return the runtime of a process to which Ray assigned so much. Torch then uses as many threads."""
    torch.set_num_threads(max(1, int(cpus)))
    return Runtime(device=device_for(gpus), memory_fraction=memory_fraction(gpus), **options)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let torch compute in `count` threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@cache
def keep_freed_memory() -> None:
    """Tell glibc to keep freed memory for the next step. Do nothing with another C library.

    Otherwise glibc returns large blocks to the kernel, which clears each page when it is allocated again:
    260,000 page faults in 15 steps of an xresnet18 at 64 px, 6 to 13 % of the time.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return
    m_trim_threshold, m_mmap_threshold = -1, -3  # of malloc.h
    mallopt(m_mmap_threshold, 2**30)
    mallopt(m_trim_threshold, 2**31 - 1)

"""Where and how a training runs: device, precision, share of the device, and the workers beside it.

What is computed does not depend on this beyond rounding; that is the configuration's business.
"""

import ctypes
import logging
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeVar, get_args

import torch
import torch.distributed as dist
from torch import Tensor

from attention import unknown
from automl.config.device import autocast, configure, fast_dtype, is_gpu

T = TypeVar("T")
Precision = Literal["auto", "bf16", "fp16", "fp32"]
Compile = Literal["auto", "off", "graphs", "inductor"]

log = logging.getLogger("automl")

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """A device and how to use it.

    precision: of the forward pass; weights stay in float32. `auto` is bfloat16 where the device computes
        in it, float16 with a scaled loss on older GPUs, float32 elsewhere.
    compile: how a step is run; see `automl.training.step`.
    memory_fraction: the part of the device's memory that this process may take.
    rank, workers: which of how many processes train the same model together.
    """

    device: torch.device
    precision: Precision = "auto"
    compile: Compile = "auto"
    memory_fraction: float = 1.0
    rank: int = 0
    workers: int = 1

    def __post_init__(self) -> None:
        for kind, value, choices in (
            ("precision", self.precision, get_args(Precision)),
            ("way to compile", self.compile, get_args(Compile)),
        ):
            if value not in choices:
                raise unknown(kind, value, choices)
        if is_gpu(self.device):
            configure(self.device, self.memory_fraction)
        else:
            keep_freed_memory()

    @property
    def dtype(self) -> torch.dtype:
        """Of the forward pass."""
        return fast_dtype(self.device) if self.precision == "auto" else DTYPES[self.precision]

    def autocast(self) -> AbstractContextManager[None]:
        return autocast(self.device, self.dtype)

    def shard(self, indices: Tensor) -> Tensor:
        """This worker's part of `indices`."""
        return indices[self.rank :: self.workers]

    def total(self, values: Tensor) -> Tensor:
        """The sum of `values` over all workers."""
        if self.workers > 1:
            dist.all_reduce(values)
        return values

    def gather(self, value: T) -> list[T]:
        """The `value` of each worker, which may be any object that can be pickled."""
        if self.workers == 1:
            return [value]
        found: list[Any] = [None] * self.workers
        dist.all_gather_object(found, value)
        return found


@cache
def keep_freed_memory() -> None:
    """Have the C library keep what a step frees for the next step, where it is glibc.

    Otherwise it returns large blocks to the kernel, which clears them page by page when they are taken
    again: 260,000 page faults in 15 steps of an xresnet18 at 64 px, and 6 to 13 % of the time.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return
    m_trim_threshold, m_mmap_threshold = -1, -3  # of malloc.h
    mallopt(m_mmap_threshold, 2**30)
    mallopt(m_trim_threshold, 2**31 - 1)

"""Estimated cost of a training step: counts of operators, multiply-adds and bytes, times unit costs.

It is used if a machine is too busy to measure a time ratio. Three small kernels measure the unit costs on
this machine (the lower quartile of their runs), which takes a few hundredths of a second. The estimate
ignores how well an operator uses the machine. On one core of a Xeon such a ratio was within 3 % for one small
module and 10 % too low for twice the depth. For multi-head attention with narrow heads it was half the true
value.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from automl.config.runtime import Runtime
from automl.training.clock import time_lower_quartiles
from backbones.torch_internals import TorchDispatchMode, tree_leaves

# Operators that return a view and move no data.
VIEWS = {"view", "_unsafe_view", "reshape", "t", "transpose", "permute", "expand", "slice", "select"}
VIEWS |= {"split", "unbind", "squeeze", "unsqueeze", "as_strided", "alias", "detach"}


@dataclass(frozen=True, kw_only=True)
class Work:
    """Amount of work.

    Attributes:
        operators: Number of kernel calls.
        flops: Operations of products and convolutions.
        bytes: Bytes read and written.
    """

    operators: float
    flops: float
    bytes: float

    def seconds(self, price: "Work") -> float:
        """Return the time [s] of this work if one unit of each kind takes `price` seconds."""
        # The terms are added, since small work, as on a CPU, does not overlap.
        return self.operators * price.operators + self.flops * price.flops + self.bytes * price.bytes

    def __add__(self, other: "Work") -> "Work":
        return Work(
            operators=self.operators + other.operators,
            flops=self.flops + other.flops,
            bytes=self.bytes + other.bytes,
        )

    def __mul__(self, times: float) -> "Work":
        return Work(operators=times * self.operators, flops=times * self.flops, bytes=times * self.bytes)


def count_work(run: Callable[[], object]) -> Work:
    """Count the work of calling `run`, including a backward pass and an optimiser step."""
    with _Calls() as calls, FlopCounterMode(display=False) as counter:
        run()
    return Work(operators=calls.operators, flops=float(counter.get_total_flops()), bytes=calls.bytes)


class _Calls(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operators = self.bytes = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        self.operators += 1
        if func.overloadpacket.__name__ not in VIEWS:
            tensors = (leaf for leaf in tree_leaves((args, kwargs or {}, output)) if isinstance(leaf, Tensor))
            self.bytes += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return output


@cache
def measure_unit_costs(runtime: Runtime) -> Work:
    """Measure the time [s] of one operator, one flop and one byte on this device, in training precision."""
    device, dtype = runtime.device, runtime.dtype
    small_tensor = torch.zeros(16, device=device)
    large_tensor = torch.zeros(2**20, device=device)
    images = torch.randn(64, 64, 16, 16, device=device, dtype=dtype).to(memory_format=torch.channels_last)
    weights = torch.randn(64, 64, 3, 3, device=device, dtype=dtype).to(memory_format=torch.channels_last)
    flops = 2 * 64 * 16**2 * 64**2 * 9

    def add_repeatedly() -> None:
        for _ in range(100):
            small_tensor.add(1.0)

    runs = [add_repeatedly, lambda: F.conv2d(images, weights, padding=1), lambda: F.relu(large_tensor)]
    with torch.no_grad():
        operators, convolution, relu = time_lower_quartiles(runs, runtime, 30)
    return Work(operators=operators / 100, flops=convolution / flops, bytes=relu / (2 * 4 * 2**20))

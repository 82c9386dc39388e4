"""GPUs that a machine without any imitates.

Only C functions are replaced, by recorded answers of the driver. So torch itself finds the index of a device,
and rejects `torch.device("cuda")` where it does so on a GPU. Tensors are on the CPU.
"""

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

SIZE = 80 * 2**30  # bytes of memory of each card


class OnCpu(TorchFunctionMode):
    """Run operations on a GPU on the CPU."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.Tensor.pin_memory:
            return args[0]
        return function(
            *map(_replace, args), **{name: _replace(value) for name, value in (kwargs or {}).items()}
        )


def _replace(argument: Any) -> Any:
    is_gpu = isinstance(argument, torch.device) and argument.type == "cuda"
    return torch.device("cpu") if is_gpu else argument


class Driver:
    """The imitated driver of `count` GPUs, with its `calls` that change something or wait, by device."""

    def __init__(self, count: int) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.used = [0] * count
        self._thread = threading.local()
        self.major = 9
        self.generators = tuple(torch.Generator() for _ in range(count))

    @property
    def current(self) -> int:
        return getattr(self._thread, "current", 0)

    @current.setter
    def current(self, index: int) -> None:
        self._thread.current = index

    def exchange(self, index: int) -> int:
        before, self.current = self.current, self._known(index)
        return before

    def record(self, name: str, *values: Any) -> None:
        self.calls.append((name, *values))

    def memory(self, index: int) -> tuple[int, int]:
        return SIZE - self.used[self._known(index)], SIZE

    def statistics(self, index: int) -> dict[str, Any]:
        self._known(index)
        return {
            "allocated_bytes": {"all": {"current": 5, "peak": 7}},
            "reserved_bytes": {"all": {"current": 9}},
        }

    def properties(self, index: int) -> SimpleNamespace:
        return SimpleNamespace(name=f"GPU {self._known(index)}", major=self.major, total_memory=SIZE)

    def _known(self, index: int) -> int:
        assert type(index) is int
        assert 0 <= index < len(self.used)
        return index

    def event(self, enable_timing: bool = False) -> SimpleNamespace:
        assert enable_timing
        return SimpleNamespace(
            record=lambda: self.record("record", self.current),
            synchronize=lambda: self.record("wait"),
            elapsed_time=lambda ended: 2000.0,
        )


def imitate_gpus(patch: pytest.MonkeyPatch, count: int = 2) -> Driver:
    """Replace the C functions of `torch.cuda` until the end of the test."""
    driver = Driver(count)
    for name, function in {
        "getDevice": lambda: driver.current,
        "setDevice": driver.exchange,
        "setMemoryFraction": lambda fraction, index: driver.record("fraction", fraction, index),
        "memoryStats": driver.statistics,
        "resetPeakMemoryStats": lambda index: driver.record("reset", index),
        "synchronize": lambda: driver.record("synchronize", driver.current),
        "emptyCache": lambda: driver.record("empty"),
    }.items():
        patch.setattr(torch._C, f"_cuda_{name}", function, raising=False)
    for name, value in {
        "_initialized": True,
        "_exchange_device": driver.exchange,
        "_maybe_exchange_device": driver.exchange,
        "_get_device_properties": driver.properties,
        "_cudart": SimpleNamespace(cudaMemGetInfo=driver.memory),
        "default_generators": driver.generators,
        "Event": driver.event,
        "is_available": lambda: True,
        "device_count": lambda: count,
    }.items():
        patch.setattr(torch.cuda, name, value, raising=False)
    return driver

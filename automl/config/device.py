"""Devices, and generators of random numbers. Only this module contains code specific to CUDA.

It is not in `automl/training` because data and storage use it and must not import training.
"""

import os
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, supported_activities

from automl.base.errors import InputError, UnusableGpu, error_message
from automl.base.units import format_size
from backbones.torch_internals import cpu_computes_bfloat16

T = TypeVar("T")
Replay = Callable[[], None]

CHOICES = "auto, cpu, cuda or cuda:N"
SHARING = "auto, cpu or cuda"  # the choices for several workers of one training

# Beginnings of the messages of errors that are no `torch.OutOfMemoryError`.
OUT_OF_MEMORY = (
    "CUDA error: out of memory",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED",
)
OTHERS = 0.1  # fraction of a GPU's memory that other processes may hold beside the fractions of its trials


def find_device(name: str = "auto") -> torch.device:
    """Return the device called `name`. `auto` is a CUDA GPU if there is one, otherwise the CPU.

    Raise InputError if this machine has no such device.
    """
    if name == "auto":
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            name = "cuda" if torch.cuda.is_available() else "cpu"
        for warning in caught:  # such as of a driver that is too old
            print(f"warning: using {name}. {str(warning.message).splitlines()[0]}", file=sys.stderr)
    try:
        device = with_index(torch.device(name))
        torch.empty(0, device=device)
        if device.type not in ("cpu", "cuda"):
            raise RuntimeError("other devices are not supported")
    except (RuntimeError, AssertionError) as error:
        reason = error_message(error)
        if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
            reason = f"{reason}; CUDA_VISIBLE_DEVICES is {visible!r}"
        raise InputError(f"device {name!r} cannot be used; try {CHOICES}. ({reason})") from error
    return device


def with_index(device: torch.device) -> torch.device:
    """Return the device. A CUDA GPU without an index, which torch rejects in places, is the current one."""
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def device_for(gpus: float) -> torch.device:
    """Return the device of a trial to which Ray assigned `gpus` GPUs.

    Raise UnusableGpu if the GPU cannot be used, since training on the CPU would only look slow.
    """
    if not gpus:
        return find_device("cpu")
    try:
        return find_device("cuda")
    except InputError as error:
        raise UnusableGpu(
            f"Ray assigned {gpus:g} GPUs to the trial, but torch {torch.__version__} cannot use any on this "
            f"node. Check that torch is built with CUDA, and with nvidia-smi that the driver is recent and "
            f"memory is free. ({error_message(error.__cause__)})"
        ) from error


def is_gpu(device: torch.device) -> bool:
    return device.type == "cuda"


def device_name(device: torch.device) -> str:
    """Return the name of the GPU or the processor. Devices of different names differ in speed."""
    return torch.cuda.get_device_name(device) if is_gpu(device) else processor()


def gpu_names() -> list[str]:
    """Return the name of each GPU of this machine."""
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


def processor() -> str:
    """Return the name of the CPU, or `cpu` if it is unknown."""
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":")[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return "cpu"


# Precision


def configure(device: torch.device, memory_fraction: float) -> None:
    """Make a GPU the current one, allow TF32, and limit this process to a fraction of its memory.

    A trial that uses more than its fraction then runs out of memory without affecting others.
    """
    make_current(device)
    if is_gpu(device):
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = True
        if memory_fraction < 1:
            torch.cuda.set_per_process_memory_fraction(memory_fraction, device)


def make_current(device: torch.device) -> None:
    """Make a GPU the current one of this thread. A new thread begins with the first GPU."""
    if is_gpu(device):
        torch.cuda.set_device(device)


def fast_dtype(device: torch.device) -> torch.dtype:
    """Return the data type of `--precision auto`: the fastest in which the device trains well."""
    if is_gpu(device):
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if fast else torch.float16
    if device.type == "cpu" and cpu_computes_bfloat16():
        return torch.bfloat16
    return torch.float32


# Memory


def empty_cache(device: torch.device) -> None:
    """Return the freed memory that torch keeps to the GPU's driver."""
    if is_gpu(device):
        torch.cuda.empty_cache()


def free_memory(device: torch.device) -> int:
    """Return the bytes of a GPU that are free to allocate."""
    empty_cache(device)  # the driver counts memory that torch keeps as used
    free, _ = torch.cuda.mem_get_info(device)
    return free


def total_memory(device: torch.device) -> int:
    """Return the bytes of memory of a GPU."""
    return int(torch.cuda.get_device_properties(device).total_memory)


def start_peak_memory(device: torch.device) -> int:
    """Restart the record of the peak, and return the bytes allocated now."""
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def peak_memory(device: torch.device) -> int:
    """Return the peak of allocated bytes since `start_peak_memory`."""
    return torch.cuda.max_memory_allocated(device)


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if the device ran out of memory."""
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and str(error).startswith(OUT_OF_MEMORY)
    )


def check_memory_of_others(device: torch.device, memory_fraction: float) -> None:
    """Raise UnusableGpu if a process has run out of memory that others hold, outside its fraction."""
    if not is_gpu(device):
        return
    free, total = torch.cuda.mem_get_info(device)
    others = total - free - torch.cuda.memory_reserved(device)
    if others > (1 - memory_fraction + OTHERS) * total:
        raise UnusableGpu(
            f"out of memory: other processes hold {format_size(others)} of the {format_size(total)} of "
            f"{device_name(device)}. End them (`nvidia-smi` lists them), or use another GPU"
        )


def copy_ahead(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor of the CPU to the device without waiting for the device's earlier work."""
    return (tensor.pin_memory() if is_gpu(device) else tensor).to(device, non_blocking=True)


# Time


def synchronise(device: torch.device) -> None:
    """Wait until the device has done all its work."""
    if is_gpu(device):
        torch.cuda.synchronize(device)


def event_seconds(run: Callable[[], object], device: torch.device) -> float:
    """Return the time [s] between two events of a GPU, before and after `run`."""
    with torch.cuda.device(device):
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begun.record()
        run()
        ended.record()
        ended.synchronize()
    return float(begun.elapsed_time(ended)) / 1e3


def busy_seconds(run: Callable[[], object], device: torch.device) -> float | None:
    """Return the time [s] in which a GPU computes or copies for `run`. None if it cannot be traced."""
    if not is_gpu(device) or ProfilerActivity.CUDA not in supported_activities():
        return None
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        run()
        synchronise(device)
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in trace.events() or ()
        if event.device_type.name != "CPU" and not event.is_user_annotation and event.name != "Context Sync"
    )
    busy, until = 0.0, float("-inf")
    for begun, ended in spans:  # Kernels of several streams may overlap.
        busy += max(0.0, ended - max(begun, until))
        until = max(until, ended)
    return busy / 1e6 if spans else None


# Random numbers


def generator_states() -> dict[str, Tensor]:
    """Return the states of torch's default generators, of the current GPU, by the type of their device."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def restore_generator_states(states: Mapping[str, Tensor]) -> None:
    """Restore the states of `generator_states`, for the devices that this machine has."""
    torch.set_rng_state(states["cpu"].cpu())
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"].cpu())


def forked_generators(device: torch.device) -> AbstractContextManager[None]:
    """Restore the generators of the CPU and of `device` after the block."""
    return torch.random.fork_rng(devices=[device] if is_gpu(device) else [])


# Graphs


def synchronising_calls(run: Callable[[], T]) -> tuple[T, list[str]]:
    """Return the result of `run`, and the lines of code in it that wait for a CUDA GPU."""
    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            result = run()
        finally:
            torch.cuda.set_sync_debug_mode(mode)
    return result, [
        f"{Path(warning.filename).name}:{warning.lineno}"
        for warning in caught
        if "synchronizing CUDA operation" in str(warning.message)
    ]


def capture(run: Callable[[], Tensor], device: torch.device) -> tuple[Replay, Tensor]:
    """Capture what `run` does on a CUDA GPU, and return a function that does it again, and the result.

    `run` must have run there before. A replay overwrites the result. Raises RuntimeError if `run` does what a
    graph cannot, such as waiting for a result. It has changed nothing then.
    """
    graph = torch.cuda.CUDAGraph()
    generator = torch.cuda.default_generators[device.index or 0]
    state = generator.clone_state()
    try:
        # Other threads, such as one that prefetches, may use the GPU meanwhile.
        with torch.cuda.device(device), torch.cuda.graph(graph, capture_error_mode="thread_local"):
            result = run()
    except BaseException:
        generator.graphsafe_set_state(state)  # After a failed capture, the old one draws no numbers any more.
        raise
    return graph.replay, result


PYTHON, NUMPY, OWN = "python", "numpy", "own"


def seed_all(seed: int) -> None:
    """Seed the generators."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def all_generator_states(own: torch.Generator) -> dict[str, Any]:
    """Return the states of the generators and of a trial's `own` generator."""
    version, numbers, gauss = random.getstate()
    name, keys, *rest = np.random.get_state(legacy=True)
    return {
        **generator_states(),
        PYTHON: [version, list(numbers), gauss],
        NUMPY: [name, torch.tensor(np.asarray(keys, np.int64)), *rest],
        OWN: own.get_state(),
    }


def restore_all_generators(states: Mapping[str, Any], own: torch.Generator) -> None:
    """Restore the states of `all_generator_states`."""
    restore_generator_states({name: state for name, state in states.items() if isinstance(state, Tensor)})
    version, numbers, gauss = states[PYTHON]
    random.setstate((version, tuple(numbers), gauss))
    name, keys, *rest = states[NUMPY]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    own.set_state(states[OWN].cpu())


@contextmanager
def kept_generators() -> Iterator[None]:
    """Restore the generators after the block."""
    own = torch.Generator()
    states = all_generator_states(own)
    try:
        yield
    finally:
        restore_all_generators(states, own)

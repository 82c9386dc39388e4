"""The fraction of a GPU for each trial, from what a training of the baseline takes of the card.

A small training waits for launches of kernels, not for the card. Without MPS, kernels of different processes
take turns, so the times in which they keep the card busy add up.
"""

from dataclasses import dataclass
from time import perf_counter

from automl.base.errors import InputError
from automl.base.units import format_size
from automl.config.device import busy_seconds, free_memory, peak_memory, synchronise, total_memory
from automl.config.runtime import MEMORY_FRACTION, Runtime
from automl.costs.profile import make_worker_config, measure_step_memory
from automl.costs.time_ratio import Epoch
from automl.task import open_task
from search.config import TrialConfig

TRIALS = (8, 4, 2, 1)  # possible numbers of trials on a GPU
LOAD = 1.0  # maximum sum of the fractions of the time in which each trial keeps the GPU busy
# Memory of a trial, relative to the baseline's peak: a trial has modules, and is timed beside the baseline.
SPARE = 3
CONTEXT = 600e6  # memory of a process on the card before it allocates anything, at most about [bytes]
CORES = 2  # of a trial: one launches kernels, the other loads data and serves Ray
TIMED, TRACED = 0.5, 10  # duration of timing [s], and maximum number of traced steps


@dataclass(frozen=True, kw_only=True)
class GpuUse:
    """Memory and time that a training takes of a GPU.

    Attributes:
        memory: Peak of the allocated memory, with data that are kept on the card [bytes].
        free: Memory that no other process uses [bytes].
        total: Memory of the card [bytes].
        step: Time of a training step [s].
        busy: Time of a step in which the card computes or copies [s]. None if it could not be traced.
    """

    memory: float
    free: float
    total: float
    step: float
    busy: float | None

    def __str__(self) -> str:
        memory = f"{format_size(self.memory)} of {format_size(self.total)}"
        if self.busy is None:
            return f"the baseline takes {memory}, and the time of its kernels could not be traced"
        return (
            f"a step of the baseline takes {memory} and {1e3 * self.step:.3g} ms, of which the GPU is busy "
            f"for {1e3 * self.busy:.3g} ms"
        )


def measure_gpu_use(config: TrialConfig, runtime: Runtime) -> GpuUse:
    """Measure what training `config` takes of this process's GPU, which nothing else should use meanwhile.

    Raises `torch.OutOfMemoryError` if a training step does not fit into memory.
    """
    config, device = make_worker_config(config, runtime.workers), runtime.device
    free, total = free_memory(device), total_memory(device)
    task = open_task(config, runtime)
    model = task.model()
    measure_step_memory(task, model)  # restarts the record of the peak
    epoch = Epoch(task, model)
    synchronise(device)
    steps, begun = 0, perf_counter()
    while perf_counter() - begun < TIMED or not steps:
        epoch.step()
        steps += 1
    synchronise(device)
    step = (perf_counter() - begun) / steps
    traced = min(steps, TRACED)

    def run() -> None:
        for _ in range(traced):
            epoch.step()

    busy_seconds(epoch.step, device)  # The first trace initialises the tracer.
    busy = busy_seconds(run, device)
    busy = None if busy is None else min(step, busy / traced)
    return GpuUse(memory=peak_memory(device), free=free, total=total, step=step, busy=busy)


@dataclass(frozen=True, kw_only=True)
class GpuFraction:
    """Fraction of a GPU for each worker of a trial, or 1, and the reason in one line."""

    gpus: float
    reason: str
    measured: bool = True

    def __str__(self) -> str:
        if self.gpus == 1:
            return f"a whole GPU for each trial: {self.reason}"
        return (
            f"{self.gpus:g} of a GPU for each trial, {int(1 / self.gpus + 1e-9)} on each GPU: {self.reason}"
        )


def choose_fraction(
    use: GpuUse, *, gpus: float, cores: float, cores_per_trial: float = 1, trials: int | None = None
) -> GpuFraction:
    """Choose how many trials share a GPU: 1, 2, 4 or 8.

    `cores` are those of the nodes with GPUs. `trials` is the number that may run at once, None for no limit.
    """
    at_once = max(1.0, gpus)
    limits = {
        "they would wait for the GPU": 1 if use.busy is None else LOAD * use.step / max(use.busy, 1e-9),
        "for the GPU's memory": use.free / (SPARE * use.memory + CONTEXT),
        f"for {cores:g} cores": cores / at_once / max(cores_per_trial, CORES),
    }
    if trials is not None:  # Three trials get quarters.
        wanted = -(-trials // at_once)
        limits[f"for {trials} trials at once"] = min(n for n in TRIALS if n >= min(wanted, TRIALS[0]))
    count = next((n for n in TRIALS if n <= min(limits.values()) + 1e-9), 1)
    reason = str(use)
    if count < TRIALS[0] and use.busy is not None:
        first = min(limits, key=lambda name: limits[name])
        reason += (
            f"; more are too many: {first}" if first.startswith("they") else f"; more are too many {first}"
        )
    return GpuFraction(gpus=1 / count, reason=reason)


def check_fraction(gpus: float, use: GpuUse) -> GpuFraction:
    """Raise InputError if the baseline does not fit into the fraction of a GPU that the user chose."""
    memory = min(MEMORY_FRACTION * gpus * use.total, use.free - CONTEXT)
    if use.memory > memory:
        raise InputError(
            f"--gpus-per-trial {gpus:g} gives a trial {format_size(max(0.0, memory))} of a GPU's memory, of "
            f"{format_size(use.total)}, but a step of the baseline takes {format_size(use.memory)}. Give "
            f"--gpus-per-trial auto, a larger fraction or a smaller --batch-size"
        )
    count = int(1 / gpus + 1e-9)
    reason, unused = str(use), 1 - count * gpus
    if unused > 0.01:
        reason += f"; {unused:.0%} of each GPU stays unused, which --gpus-per-trial {1 / count:.4g} would use"
    return GpuFraction(gpus=gpus, reason=reason)

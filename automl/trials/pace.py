"""Times trainings by the clock as trials run: several at once, under the load that there is.

On a cluster and on GPUs, that is in workers of Ray. On the cores of this machine, it is in this process,
beside processes that keep as many cores busy as other trainings: workers start slowly on a busy machine.
Beside one such process on two cores, epochs of digits took 3.2 to 4.1 s and were forecast as 4.2 s.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean
from time import perf_counter, process_time
from typing import Any

import torch

from automl.config.device import device_for, synchronise
from automl.config.runtime import Runtime
from automl.costs.time_ratio import Epoch
from automl.storage.storage import Storage
from automl.tasks import open_task
from automl.training import checkpoint
from backbones.loading import Code, receive
from search.config import TrialConfig

STEPS_FRACTION = 0.7  # of the time, for training steps; the rest is for validation
SLOW = 3.0  # seconds of a first run, from which there need not be a second one
# Ends by itself where its parent was killed.
SPIN = "import time\nuntil = time.monotonic() + 60\nwhile time.monotonic() < until: pass"


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Seconds by the clock: of a training step, of a validation pass, of a checkpoint, of a new model.

    load: seconds by the clock for each of processor time; 1 on a GPU.
    """

    step: float
    validation: float
    checkpoint: float
    model: float
    load: float


def mean_pace(paces: list[Pace]) -> Pace:
    """Return the means over trainings that were timed at once."""
    return Pace(**{name: fmean(getattr(pace, name) for pace in paces) for name in Pace.__dataclass_fields__})


@contextmanager
def busy(cores: int) -> Iterator[None]:
    """Keep so many cores busy inside the block, as other trainings would."""
    command = [sys.executable, "-S", "-c", SPIN]
    others = [subprocess.Popen(command) for _ in range(cores)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


class PaceWorker:
    """Times one training: an actor on Ray, or an object of this process.

    config: of one worker of a trial. cpus, gpus: that it is given. runtime: further arguments of a Runtime.
    """

    def __init__(
        self, config: TrialConfig, code: Code, cpus: float, gpus: float, runtime: dict[str, Any]
    ) -> None:
        receive(code)
        torch.set_num_threads(max(1, int(cpus)))
        self.runtime = Runtime(device=device_for(gpus), memory_fraction=min(1, gpus) or 1, **runtime)
        self.task = open_task(config, self.runtime)

    def ready(self) -> None:
        """Return when the process runs and has its data."""

    def measure(self, seconds: float) -> Pace:
        """Time steps and passes for so long, and at least one of each."""
        until = perf_counter() + seconds
        model = self._time(lambda: self.task.initialise(self.task.model()))
        epoch = Epoch(self.task, warm_up=False)
        steps_until = until - (1 - STEPS_FRACTION) * (until - perf_counter())
        began, worked = perf_counter(), process_time()
        steps = self._repeat(epoch.step, steps_until)
        load = (perf_counter() - began) / max(1e-6, process_time() - worked)
        passes = self._repeat(epoch.validate, until)
        with tempfile.TemporaryDirectory() as folder:
            place = Storage(folder)
            written = self._repeat(lambda: checkpoint.save(place, self.task.config, epoch.state, []), until)
        cpu = self.runtime.device.type == "cpu"
        return Pace(
            step=_mean(steps),
            validation=_mean(passes),
            checkpoint=_mean(written),
            model=model,
            load=max(1.0, load) if cpu else 1.0,
        )

    def _repeat(self, run: Callable[[], object], until: float) -> list[float]:
        times = [self._time(run)]
        if times[0] < SLOW:
            times.append(self._time(run))
        while perf_counter() + times[-1] < until:
            times.append(self._time(run))
        return times

    def _time(self, run: Callable[[], object]) -> float:
        begun = perf_counter()
        run()
        synchronise(self.runtime.device)
        return perf_counter() - begun


def _mean(times: list[float]) -> float:
    """Return the mean without the first run, which warms up."""
    return fmean(times[1:] or times)

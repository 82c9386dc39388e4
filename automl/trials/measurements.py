"""Measures trainings before the trials start: what one takes of a GPU, and their pace under load.

A short task on a whole GPU finds the fraction of it for each trial.

The pace is that of several trainings at once. On a cluster and on GPUs, they are workers of Ray. On the cores
of this machine, where workers start slowly, one training is timed in this process, beside processes that keep
as many cores busy as other trainings would.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, median
from time import perf_counter, process_time
from typing import Any

import ray
import torch
from ray.exceptions import GetTimeoutError, RayError

from automl.base.errors import InputError
from automl.base.loading import Code, receive
from automl.base.serialise import write_json
from automl.config.device import device_name, synchronise
from automl.config.nouns import Place
from automl.config.runtime import Runtime, runtime_for, threads
from automl.costs.gpu_fraction import GpuFraction, GpuUse, check_fraction, choose_fraction, measure_gpu_use
from automl.costs.profile import measure
from automl.costs.time_ratio import Epoch
from automl.data import shared
from automl.storage.storage import Storage
from automl.storage.trial_files import ORIGINAL_FILE, Original, read_original
from automl.task import Task, open_task
from automl.task.task_data import Split
from automl.training import checkpoint
from automl.training.clock import time_in_turn, wall_seconds
from automl.training.loop import evaluate
from automl.trials.job import Trainings
from cluster.resources import TrialResources
from search.config import TrialConfig

LIMIT = 300.0  # seconds to wait for a GPU and the measurement


def trial_resources(place: Place, nodes: Sequence[Mapping[str, float]]) -> TrialResources:
    """Return the resources of a trial, with a whole GPU if any node has one and none was requested."""
    has_gpu = place.gpus_per_trial is None and any(node.get("GPU") for node in nodes)
    return replace(place.shape, gpus=1) if has_gpu else place.shape


def find_fraction(
    place: Place,
    shape: TrialResources,
    nodes: Sequence[Mapping[str, float]],
    trainings: Trainings,
    *,
    trials: int | None,
) -> GpuFraction | None:
    """Choose the fraction of a GPU for each trial, or check the one that the settings request.

    The training of the baseline is measured, with the resources `shape` of a trial. `nodes` have the
    resources of each node. `trials` is their number, or None if only the time is limited. Return None if
    there is no choice: trials get no GPU, the settings request whole ones, or the trials are commands. Raises
    InputError if the baseline does not fit into the requested fraction.
    """
    requested, baseline = place.gpus_per_trial, trainings.baseline
    if not shape.gpus or (requested or 0) >= 1 or not trainings.profile:
        return None
    if requested is None and shape.workers > 1:
        return GpuFraction(gpus=1, reason=f"its {shape.workers} workers cannot share one")
    measure = ray.remote(max_calls=1, **shape.remote_options)(_measure)
    arithmetic = trainings.terms.arithmetic
    waiting = measure.remote(baseline, baseline.code(), trainings.data, shape.cpus, arithmetic)
    try:
        use = ray.get(waiting, timeout=LIMIT)
    except RayError as error:
        if isinstance(error, GetTimeoutError):  # Ray may end this process if the task ends meanwhile.
            ray.cancel(waiting, force=True)
        cause = getattr(error, "cause", None) or error
        lines = str(cause).strip().splitlines() or [""]
        reason = f"the baseline could not be measured ({type(cause).__name__}: {lines[0]})"
        return GpuFraction(gpus=requested or 1, reason=reason, measured=False)
    if requested is not None:
        return check_fraction(requested, use)
    with_gpu = [node for node in nodes if node.get("GPU")]
    at_once = [number for number in (trials, place.concurrent) if number is not None]
    return choose_fraction(
        use,
        gpus=sum(node["GPU"] for node in with_gpu),
        cores=sum(node.get("CPU", 0) for node in with_gpu),
        cores_per_trial=shape.cpus,
        trials=min(at_once, default=None),
    )


def _measure(
    baseline: TrialConfig, code: Code, data: Mapping[str, Any] | None, cpus: float, runtime: dict[str, Any]
) -> GpuUse:
    """Measure what a training of the baseline takes of a GPU. Runs in a process of Ray."""
    receive(code)
    shared.use(data)
    return measure_gpu_use(baseline, runtime_for(cpus, 1, **runtime))


def measure_original(folder: Path, task: Task, split: Split) -> None:
    """Measure the untouched model that trainings start from, once for a folder. New weights are none."""
    plain, runtime, file = task.config.change(model={"placement": {}}), task.runtime, folder / ORIGINAL_FILE
    if not plain.model.weights or plain.training.reported is not None or file.exists():
        return
    costs, scores, task = {}, {}, open_task(plain, runtime)
    with suppress(torch.OutOfMemoryError), threads(1):  # whose processor time depends least on other load
        costs = asdict(measure(plain, plain, runtime))
    model = task.model()
    if not task.initialise(model):  # no layer is new
        scores = {name: value.item() for name, value in evaluate(task, model, split).items()}
    write_json(file, Original(scores=scores, costs=costs, device=device_name(runtime.device)))


def measure_decoding(folder: Path, configs: Mapping[str, TrialConfig], runtime: Runtime) -> None:
    """Measure the times of a token of decoders by name, beside the original in a folder, if it has one."""
    if (original := read_original(folder)) is None or not original.costs.get("cache"):
        return
    for name, config in configs.items():
        if config.model.placement and name not in original.decoding:
            task, times = open_task(config, runtime), list[tuple[int, float, float]]()
            with suppress(InputError, torch.OutOfMemoryError):  # Not every mixer can decode.
                times += task.decoding_times(task.model())
            original = replace(original, decoding={**original.decoding, name: times})
            write_json(folder / ORIGINAL_FILE, original)


STEPS_FRACTION = 0.7  # fraction of the time for training steps; the rest is for validation
# The loop ends by itself if its parent was killed.
SPIN = "import time\nuntil = time.monotonic() + 60\nwhile time.monotonic() < until: pass"


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Wall times [s] of one training.

    Attributes:
        step: Time of a training step.
        validation: Time of a validation pass.
        checkpoint: Time of writing a checkpoint.
        model: Time of building a model.
        load: Wall time divided by processor time. 1 on a GPU.
    """

    step: float
    validation: float
    checkpoint: float
    model: float
    load: float


def average_paces(paces: list[Pace]) -> Pace:
    """Return the means over trainings that were timed at the same time."""
    return Pace(**{name: fmean(getattr(pace, name) for pace in paces) for name in Pace.__dataclass_fields__})


@contextmanager
def keep_busy(cores: int) -> Iterator[None]:
    """Keep `cores` cores busy inside the block, as other trainings would."""
    command = [sys.executable, "-I", "-S", "-c", SPIN]
    others = [subprocess.Popen(command) for _ in range(cores)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


class PaceWorker:
    """Times one training. An actor on Ray, or an object of this process.

    Args:
        runtime: Further arguments of the `Runtime`.
        data: Result of `session.share_data` on another machine.
    """

    def __init__(
        self,
        config: TrialConfig,
        code: Code,
        cpus: float,
        gpus: float,
        runtime: dict[str, Any],
        data: Mapping[str, Any] | None = None,
    ) -> None:
        receive(code)
        if data is not None:
            shared.use(data)
        self.runtime = runtime_for(cpus, gpus, **runtime)
        self.task = open_task(config, self.runtime)

    def ready(self) -> None:
        """Return when the process runs and has its data."""

    def measure(self, seconds: float) -> Pace:
        """Time steps and passes for `seconds`, at least one of each after another one."""
        until = perf_counter() + seconds
        models = self._repeat(lambda: self.task.initialise(self.task.model()), 0.0)
        epoch = Epoch(self.task)
        steps_until = until - (1 - STEPS_FRACTION) * (until - perf_counter())
        start_time, start_processor_time = perf_counter(), process_time()
        steps = self._repeat(epoch.step, steps_until)
        load = (perf_counter() - start_time) / max(1e-6, process_time() - start_processor_time)
        passes = self._repeat(epoch.validate, until) if epoch.passes else [0.0]
        with tempfile.TemporaryDirectory() as folder:
            storage = Storage(folder)
            writes = self._repeat(lambda: checkpoint.save(storage, self.task.config, epoch.state, []), until)
        load = max(1.0, load) if self.runtime.device.type == "cpu" else 1.0
        step, validation, written, model = map(fmean, (steps, passes, writes, models))
        return Pace(step=step, validation=validation, checkpoint=written, model=model, load=load)

    def compare(self, others: Sequence[tuple[TrialConfig, Code]], seconds: float) -> list[float]:
        """Return the time for a step of other configurations, divided by the baseline's.

        Steps are timed in turn for `seconds`, at least one of each. The list is empty if memory is too small.
        """
        for _, code in others:
            receive(code)
        tasks = [self.task, *(open_task(config, self.runtime) for config, _ in others)]
        until, rounds = perf_counter() + seconds, []
        try:
            for times in time_in_turn([partial(self._time, Epoch(task).step) for task in tasks]):
                rounds.append(times)
                if perf_counter() >= until:
                    break
        except torch.OutOfMemoryError:
            return []
        return [median(times[i] / times[0] for times in rounds) for i in range(1, len(tasks))]

    def _repeat(self, run: Callable[[], object], until: float) -> list[float]:
        times: list[float] = []
        for (duration,) in time_in_turn([partial(self._time, run)]):
            times.append(duration)
            if perf_counter() + duration >= until:
                break
        return times

    def _time(self, run: Callable[[], object]) -> float:
        def finish() -> None:
            run()
            synchronise(self.runtime.device)

        return wall_seconds(finish)

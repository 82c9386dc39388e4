"""Estimates the cost and power of a search before it is started: `automl search --dry-run`."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil, sqrt
from time import monotonic, process_time
from typing import Any

import ray
import torch
from scipy.stats import t as student

from automl.config.settings import Settings
from automl.config.units import format_count, format_duration
from automl.costs.forecast import model_cost
from automl.costs.profile import of_one_worker
from automl.costs.time_ratio import ALLOWED, MEASURING_FRACTION
from automl.search.run_search import prepare
from automl.tasks import Task
from automl.trials.pace import Pace, PaceWorker, busy, mean_pace
from cluster.connect import connect, joins_cluster, list_nodes
from cluster.resources import TrialResources, count_slots
from search.config import TrialConfig
from search.halving import REDUCTION, Rungs
from search.record import model_name, placement_name
from search.size import Size, measure_size

LIMIT = 15.0  # seconds that a forecast takes, with the checks; the command takes 20 with its imports
WORKERS = 16.0  # that workers may take to start and to time trainings
LAST = 6.0  # of them, for timing
IMPORTS = 15.0  # seconds of processor time that a worker imports at most
TIMED = 4.0  # seconds that trainings are timed, or longer where a step takes longer
AT_ONCE = 8  # trainings at most that are timed at once
COUNTED = 5  # models of the space at least that are counted, to find its extremes
# Of a trial before it trains: models that are built; steps and passes of a short time measurement, as long as
# which counting the work of a step takes, too.
MODELS, FIRST_STEPS, FIRST_PASSES = 3, 20, 10
SEEDS = 10  # of `confirm`

# How much accuracies vary from seed to seed, as a multiple of the spread of as many coin flips as there are
# test inputs: 0.88 points on the 3,929 of Imagewoof, where it takes 25 seeds a variant to see the 0.7 points
# of SimpleSelfAttention.
NOISE = 1.8
LIKELY = 0.9  # accuracy of a trained model


@dataclass(frozen=True, kw_only=True)
class ExampleModel:
    """A model of the space: what it is, its parameters and its MACs for one input."""

    what: str
    params: int
    macs: int


@dataclass(frozen=True, kw_only=True)
class Preview:
    """The forecast of a search.

    smallest, largest: by MACs, of `models`: the baseline and random draws.
    startup: seconds until the first trial runs, as it took here, or estimated on this machine alone.
    measuring: seconds at most that a trial's costs are measured. epoch: of a baseline's epoch where trials
        run, by the clock, with `timed` trainings at once; None where no step ended in time.
    resource: epochs that a trial takes on the average, as halving goes.
    shared partial trainings: plain trainings that the others go on from. prunes: whether weak trials are
    pruned. hours: of the whole search on this cluster with its slots; None where the time is limited, not
    the trials. disk: bytes of checkpoints at most.
    detectable: the least difference of the metric that `confirm` would detect with 10 seeds and 80 % power.
    """

    space: str
    size: Size
    smallest: ExampleModel
    largest: ExampleModel
    models: int
    startup: float
    measuring: float | None
    epoch: float | None
    timed: int
    epochs: float
    resource: float
    shared_trainings: int
    prunes: bool
    trials: int | None
    slots: int
    hours: float | None
    disk: float
    detectable: float | None

    def lines(self) -> Iterator[str]:
        """The forecast as people read it."""
        size = self.size
        yield (
            f"space       {self.space}: about {format_count(size.combinations)} combinations (standard error "
            f"{format_count(size.error)}), with up to {size.continuous} continuous numbers each"
        )
        for name, model in (("smallest", self.smallest), ("largest", self.largest)):
            params, macs = format_count(model.params), format_count(model.macs)
            yield f"{name:11} {params} parameters, {macs} MACs: {model.what}"
        if self.epoch is None:
            yield f"epoch       unknown: no training step ended within {WORKERS:g} s"
        else:
            together = f"{self.timed} trainings at once" if self.timed > 1 else "one training"
            yield f"epoch       {self.epoch:.1f} s for the baseline, by the clock with {together}"
        why = "the weak ones are pruned" if self.prunes else "none is pruned"
        if self.shared_trainings:
            why = f"all but {self.shared_trainings} go on from these"
        yield (
            f"trial       {self.epochs:g} epochs of the baseline's time; {self.resource:.2g} on the average, "
            f"as {why}"
        )
        costs = (
            ""
            if self.measuring is None
            else f", and {format_duration(self.measuring)} to measure each one's costs"
        )
        yield f"start       {format_duration(self.startup)} until the first trial runs{costs}"
        if self.hours is not None:
            yield (
                f"search      {self.trials} trials, {self.slots} at a time: about "
                f"{format_duration(3600 * self.hours)}, {self.hours * self.slots:.2g} device hours"
            )
        yield f"disk        {self.disk / 1e6:.0f} MB of checkpoints at most"
        if self.detectable is not None:
            yield (
                f"confirm     {SEEDS} seeds would detect a difference of {100 * self.detectable:.1f} points "
                f"with 80 % power, on a test split of the validation split's size"
            )


def preview(settings: Settings, tell: Callable[[str], None] = lambda text: None) -> Preview:
    """Forecast a search. Times a few steps where trials would run, several at once; trains nothing.

    tell: called with what is being done. Beside the checks, which are the search's own, it takes 20 s
        at most.

    Raises InputError for what `run_search` would.
    """
    begun, imported = monotonic(), process_time()
    ready = prepare(settings)
    settings, plan, baseline = ready.settings, ready.plan, ready.baseline
    until = begun + LIMIT
    tell("starting Ray")
    configs = [baseline, *ready.draws]
    models: list[ExampleModel] = []

    def count_until(stop: Callable[[], bool]) -> None:
        while len(models) < len(configs) and not (len(models) >= COUNTED and stop()):
            models.append(_model(configs[len(models)], settings))

    with connect():
        shape = settings.shape
        there = [node.resources for node in list_nodes(shape.labels).values() if not node.draining]
        if settings.gpus_per_trial is None and any(node.get("GPU") for node in there):
            shape = replace(shape, gpus=1)
        # With --concurrent, the search waits for nodes that are not there yet.
        at_once = settings.concurrent or count_slots(shape, there)
        together = max(1, min(at_once, plan.trials or at_once, AT_ONCE)) * shape.workers
        here = shape.gpus == 0 and not joins_cluster()
        pace, startup = None, monotonic() - begun
        if not here:
            until = max(until, monotonic() + WORKERS)
            tell(f"starting {together} workers, and counting the models of the space meanwhile")
            workers = [_worker(baseline, settings, shape) for _ in range(together)]
            starting = [worker.ready.remote() for worker in workers]
            count_until(lambda: not _pending(starting, 0) or monotonic() > until - LAST)
            if not _pending(starting, until - LAST - monotonic()):
                startup = monotonic() - begun
                tell(f"timing {together} trainings at once")
                timing = [worker.measure.remote(TIMED) for worker in workers]
                if not _pending(timing, until - monotonic()):
                    pace = mean_pace(ray.get(timing))
    if here:
        tell(f"timing a training as one of {together} at once")
        threads = torch.get_num_threads()
        with busy((together - 1) * max(1, int(shape.cpus))):
            pace = PaceWorker(*_arguments(baseline, settings, shape)).measure(TIMED)
        torch.set_num_threads(threads)
        # MLflow's process, and then the workers, import about what this process has imported.
        importing = min(imported, IMPORTS) * pace.load
        startup += importing * (1 + max(1.0, together / sum(node.get("CPU", 0) for node in there)))
    tell("counting the models of the space")
    count_until(lambda: monotonic() > until - 1)
    shared_trainings = settings.shared_trainings if settings.shares_training else 0
    resource = (
        continued_resource(plan.budget, baseline.training.insert_at, shared_trainings, plan.trials)
        if shared_trainings
        else plan.budget
        if settings.is_grid
        else expected_resource(plan.budget)
    )
    epoch = measuring = hours = None
    if pace is not None:
        epoch = _epoch(ready.task, pace, shape)
        measuring = _measuring(pace, plan.budget * epoch)
        if plan.trials is not None:
            trial = measuring + resource * epoch
            hours = (startup + plan.trials * trial / min(at_once, plan.trials)) / 3600
    large = max(models, key=lambda model: model.macs)
    # Weights and the two averages of the optimiser, in float32, and the file that replaces the last one.
    checkpoint = (16 if baseline.training.average else 12) * large.params
    error = ready.task.metric.standard_error(LIKELY, ready.task.size("validation"))
    return Preview(
        space=settings.space_name,
        size=measure_size(ready.space, seconds=until - monotonic()),
        smallest=min(models, key=lambda model: model.macs),
        largest=large,
        models=len(models),
        startup=startup,
        measuring=measuring,
        epoch=epoch,
        timed=together,
        epochs=plan.budget,
        resource=resource,
        shared_trainings=shared_trainings,
        prunes=not settings.is_grid,
        trials=plan.trials,
        slots=at_once,
        hours=hours,
        disk=checkpoint * (settings.keep + 1 + shared_trainings + 2 * at_once),
        detectable=None if error is None else detectable(error, SEEDS),
    )


def _pending(calls: Sequence[Any], seconds: float) -> bool:
    """Wait so long for calls of workers, and return whether some have not ended."""
    return len(ray.wait(list(calls), num_returns=len(calls), timeout=max(0.0, seconds))[0]) < len(calls)


def _worker(baseline: TrialConfig, settings: Settings, shape: TrialResources) -> Any:
    """A worker where a trial would run, with what it would be given."""
    made = ray.remote(
        num_cpus=shape.cpus,
        num_gpus=shape.gpus,
        resources=dict(shape.custom),
        label_selector=dict(shape.labels),
    )(PaceWorker)
    return made.remote(*_arguments(baseline, settings, shape))


def _arguments(baseline: TrialConfig, settings: Settings, shape: TrialResources) -> tuple[Any, ...]:
    config = of_one_worker(baseline, shape.workers)
    runtime = {"precision": settings.precision, "compile": settings.compile}
    return config, baseline.code(), shape.cpus, shape.gpus, runtime


def _epoch(task: Task, pace: Pace, shape: TrialResources) -> float:
    """Seconds of an epoch of the baseline: its steps, its validation, its checkpoint."""
    inputs = 2 * of_one_worker(task.config, shape.workers).training.batch_size
    passes = ceil(task.size("validation") / (inputs * shape.workers))
    return task.steps() * pace.step + passes * pace.validation + pace.checkpoint


def _measuring(pace: Pace, training: float) -> float:
    """Seconds before a trial trains: its models are built, and its steps and the baseline's are timed."""
    least = FIRST_STEPS * pace.step + FIRST_PASSES * pace.validation
    return MODELS * pace.model + max(least, ALLOWED * pace.load, MEASURING_FRACTION * training)


def expected_resource(budget: float) -> float:
    """The mean resource of a trial when a third continues at each rung."""
    marks = [0.0, *Rungs(budget).milestones, budget]
    return float(sum((b - a) / REDUCTION**i for i, (a, b) in enumerate(pairwise(marks))))


def continued_resource(budget: float, insert_at: int, shared_trainings: int, trials: int | None) -> float:
    """The mean resource of a trial when all but the shared partial trainings begin at epoch `insert_at`.

    trials: None for as many as there is time for.
    """
    part = 0.0 if trials is None else min(1.0, shared_trainings / trials)
    return budget - insert_at + part * insert_at


def detectable(error: float, seeds: int) -> float:
    """The difference of two variants that a paired t-test at 5 % finds with a power of 80 %.

    error: the standard error of a score, by the size of the test split.
    """
    spread = NOISE * sqrt(2) * error
    degrees = seeds - 1
    return float((student.ppf(0.975, degrees) + student.ppf(0.8, degrees)) * spread / sqrt(seeds))


def _model(config: TrialConfig, settings: Settings) -> ExampleModel:
    expected = model_cost(config, settings.runtime)
    where = placement_name(config) if config.model.placement else "no attention"
    return ExampleModel(what=f"{model_name(config)}, {where}", params=expected.params, macs=expected.macs)

"""Estimate the cost and power of a search, for `automl search --dry-run`."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, sqrt
from time import monotonic, process_time
from typing import Any

import ray
import torch

from automl.base.loading import Code
from automl.base.options import with_keywords_of
from automl.base.units import format_count, format_duration, format_size, pluralize
from automl.config.runtime import threads
from automl.config.search_options import SearchOptions
from automl.config.settings import ParsedSettings, Settings
from automl.costs.forecast import predict_cost
from automl.costs.profile import make_worker_config
from automl.costs.time_ratio import ALLOWED, MEASURING_FRACTION
from automl.data import shared
from automl.judge.decision import detectable
from automl.search.prepare import Prepared, open_settings, prepare
from automl.storage.storage import Storage
from automl.task import Split
from automl.trials import measurements
from automl.trials.job import Trainings
from automl.trials.ray_workers import list_open_nodes
from automl.trials.session import share_data
from cluster.connect import connect
from cluster.resources import TrialResources, count_slots, joins_cluster
from search.config import TrialConfig
from search.record import describe_placement, model_name
from search.trial_scheduler import expected_resource

CountUntil = Callable[[Callable[[], bool]], None]

LIMIT = 15.0  # duration of a forecast with the checks [s]; imports add 5 s
WORKERS = 16.0  # maximum time for workers to start and to time trainings [s]
LAST = 6.0  # of it, the time for timing [s]
IMPORTS = 15.0  # maximum processor time of the imports of a worker [s]
TIMED = 4.0  # duration of timing [s]; longer if a step takes longer
COMPARED = 2.0  # duration of timing the extremes of the space [s]
SLOW = 0.5  # time of a step from which the extremes are not timed [s]
AT_ONCE = 8  # maximum number of trainings timed at once
MIN_MODELS = 5  # minimum number of models of the space to count, to find its extremes
# Before a trial trains, it builds models, and takes steps and passes of a short time measurement. Counting
# the work of a step takes as long as that.
MODELS, FIRST_STEPS, FIRST_PASSES = 3, 20, 10
SEEDS = 10  # default of `confirm`

# Standard deviation of accuracies between seeds, relative to that of a binomial proportion with as many test
# inputs. It gives 0.88 points on the 3,929 images of Imagewoof, where 25 seeds per variant are needed to
# detect the 0.7 points of SimpleSelfAttention.
NOISE = 1.8
LIKELY = 0.9  # accuracy of a trained model


@dataclass(frozen=True, kw_only=True)
class ExampleModel:
    """Model of the space. `what` is its backbone and placement in words."""

    what: str
    params: int
    macs: int


@dataclass(frozen=True, kw_only=True)
class Preview:
    """Forecast of a search.

    Attributes:
        smallest: Model with the fewest MACs among `models`.
        largest: Model with the most MACs among `models`.
        models: Number of models counted: the baseline and random draws.
        steps: Time for a training step of the models with the fewest and most MACs among those with modules,
            divided by the baseline's, with its hyperparameters. Empty if it was not measured.
        startup: Time until the first trial runs [s], measured or, on this machine alone, estimated.
        measuring: Maximum time of measuring the costs of a trial [s].
        step: Wall time of a training step of the baseline [s] with `timed` trainings at once. None if no step
            ended in time.
        epoch: Wall time of an epoch of the baseline [s]. None if it is unknown.
        timed: Number of trainings timed at once.
        resource: Expected epochs of a trial under successive halving.
        prunes: True if weak trials are pruned.
        slots: Number of trials at a time.
        hours: Duration of the search [h]. None if the time is limited, not the trials.
        disk: Maximum size of checkpoints [bytes].
        data: Size of the decoded data on the disk of each host that trains [bytes]. 0 if they stay in memory.
        fetching: Time in which a host fetches them from the storage [s]. None if it does not, or it is
            unknown.
        gpus: Fraction of a GPU for each trial, and why. None if there is no choice.
        detectable: Smallest difference of the metric that `confirm` detects with 10 seeds and 80 % power.
    """

    space: str
    smallest: ExampleModel
    largest: ExampleModel
    models: int
    steps: Sequence[tuple[float, str]]
    startup: float
    measuring: float | None
    step: float | None
    epoch: float | None
    timed: int
    epochs: float
    resource: float
    prunes: bool
    trials: int | None
    slots: int
    hours: float | None
    disk: float
    data: int
    fetching: float | None
    gpus: str | None
    detectable: float | None

    def lines(self) -> Iterator[str]:
        """Yield the forecast as lines for a terminal."""
        yield f"space       {self.space}"
        for name, model in (("smallest", self.smallest), ("largest", self.largest)):
            params, macs = format_count(model.params), format_count(model.macs)
            yield f"{name:11} {params} parameters, {macs} MACs: {model.what}"
        load = f"{self.timed} trainings at once" if self.timed > 1 else "one training"
        if self.step is None:
            yield f"epoch       unknown: no training step ended within {WORKERS:g} s"
        elif self.epoch is None:
            yield (
                f"step        {1000 * self.step:.3g} ms for the baseline, measured with {load}; only the "
                f"training function knows how many an epoch has"
            )
        else:
            yield f"epoch       {self.epoch:.1f} s for the baseline, measured with {load}"
        for i, (ratio, what) in enumerate(self.steps):
            yield f"{'' if i else 'step':11} {ratio:.2f} times the baseline's: {what}"
        reason = "weak trials are pruned" if self.prunes else "no trial is pruned"
        yield (
            f"trial       {pluralize(self.epochs, 'epochs')} in the baseline's time; {self.resource:.2g} on "
            f"average, as {reason}"
        )
        costs = (
            ""
            if self.measuring is None
            else f", and {format_duration(self.measuring)} to measure the costs of each trial"
        )
        yield f"start       {format_duration(self.startup)} until the first trial runs{costs}"
        if self.gpus is not None:
            yield f"gpus        {self.gpus}"
        if self.hours is not None:
            yield (
                f"search      {pluralize(self.trials or 0, 'trials')}, {self.slots} at a time: about "
                f"{format_duration(3600 * self.hours)}, {self.hours * self.slots:.2g} device hours"
            )
        yield f"disk        at most {format_size(self.disk)} of checkpoints"
        if self.data:
            fetched = "" if self.fetching is None else f", fetched in about {format_duration(self.fetching)}"
            yield f"data        {format_size(self.data)} on the disk of each host that trains{fetched}"
        if self.detectable is not None:
            yield (
                f"confirm     {SEEDS} seeds detect a difference of {100 * self.detectable:.1f} points with "
                f"80 % power, if the test split is as large as the validation split"
            )


@with_keywords_of(SearchOptions)
def preview_search(*positional: Any, **settings: Any) -> Preview:
    """Estimate the duration, disk space and power of a search, without training: `--dry-run`.

    It makes the checks of the search, and times a few steps where trials would run.

    Returns:
        The forecast. Its `lines()` are what `--dry-run` prints.

    Raises:
        InputError: `run_search` would raise it.

    Example:
        >>> import automl
        >>> forecast = automl.preview_search(space="digits", trials=8, epochs=2)
        >>> forecast.trials, forecast.smallest.params <= forecast.largest.params
        (8, True)
    """
    if positional:
        Settings(*positional)  # This raises the InputError.
    return preview(open_settings(settings))


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Measured time of trainings of the baseline, `timed` at once, of `slots` that a search has."""

    pace: measurements.Pace | None  # None if no step ended in time
    startup: float  # [s]
    shape: TrialResources
    fraction: str | None
    slots: int
    timed: int
    ratios: dict[int, float]  # by the number of a model, the time for a step divided by the baseline's
    until: float  # when the forecast has to end


def preview(settings: ParsedSettings, tell: Callable[[str], None] = lambda text: None) -> Preview:
    """Forecast a search. Time a few steps on the nodes of trials, several at once, without training.

    It takes at most 20 s beside the checks, which are those of the search.

    `tell` is called with the name of each phase. Raises InputError if `run_search` would.
    """
    started, imported = monotonic(), process_time()
    ready = prepare(settings)
    configs = ready.configs
    models: list[ExampleModel] = []

    def count_until(stop: Callable[[], bool]) -> None:
        while len(models) < len(configs) and not (len(models) >= MIN_MODELS and stop()):
            config = configs[len(models)]
            cost = predict_cost(config, ready.settings.terms.runtime)
            what = f"{model_name(config)}, {describe_placement(config)}"
            models.append(ExampleModel(what=what, params=cost.params, macs=cost.macs))

    def find_extremes() -> dict[int, tuple[TrialConfig, Code]]:
        macs = [(model.macs, i) for i, model in enumerate(models) if configs[i].model.placement]
        ends = {min(macs)[1]: None, max(macs)[1]: None} if macs else {}
        workers = ready.settings.place.shape.workers
        # With the baseline's hyperparameters, since another batch size takes another time, too.
        alike = {i: replace(ready.baseline, model=configs[i].model) for i in ends}
        return {i: (make_worker_config(config, workers), config.code()) for i, config in alike.items()}

    timing = _time_trainings(ready, count_until, find_extremes, tell, started, imported)
    tell("counting models of the space")
    count_until(lambda: monotonic() > timing.until - 1)
    return _forecast(ready, models, timing)


def _time_trainings(
    ready: Prepared,
    count_until: CountUntil,
    find_extremes: Callable[[], dict[int, tuple[TrialConfig, Code]]],
    tell: Callable[[str], None],
    started: float,
    imported: float,
) -> Timing:
    """Time trainings of the baseline, as many at once as the search would run, and of the extremes."""
    # The forecast began at `started`. The imports before took the processor time `imported`.
    place, plan = ready.settings.place, ready.plan
    until = started + LIMIT
    tell("starting Ray")
    with connect():
        available = list_open_nodes(place)
        shape = measurements.trial_resources(place, available)
        if shape.gpus:
            tell("measuring the baseline on a GPU")
        location, terms = Storage(place.storage), ready.settings.terms
        splits: tuple[Split, Split] = ("train", "validation")
        data = share_data(ready.task, None, place.storage, *splits) if joins_cluster() else None
        trainings = Trainings(location=location, baseline=ready.baseline, terms=terms, data=data)
        fraction = measurements.find_fraction(place, shape, available, trainings, trials=plan.trials)
        if fraction is not None:
            shape = replace(shape, gpus=fraction.gpus)
        # With --concurrent, the search waits for nodes that a cluster does not have yet.
        fitting = place.concurrent if place.concurrent and joins_cluster() else count_slots(shape, available)
        slots = min(fitting, place.concurrent or fitting)
        timed = max(1, min(slots, plan.trials or slots, AT_ONCE)) * shape.workers
        pace, startup = None, monotonic() - started
        ratios: dict[int, float] = {}
        here = shape.gpus == 0 and not joins_cluster()
        if not here:
            until = max(until, monotonic() + WORKERS)
            tell(f"starting {timed} workers and counting models of the space")
            actor = ray.remote(**shape.remote_options)(measurements.PaceWorker)
            workers = [actor.remote(*_arguments(trainings, shape)) for _ in range(timed)]
            starting = [worker.ready.remote() for worker in workers]
            count_until(lambda: not _pending(starting, 0) or monotonic() > until - LAST)
            if not _pending(starting, until - LAST - monotonic()):
                startup = monotonic() - started
                tell(f"timing {timed} trainings at once")
                timing = [worker.measure.remote(TIMED) for worker in workers]
                if not _pending(timing, until - monotonic()):
                    pace = measurements.average_paces(ray.get(timing))
                    if pace.step < SLOW and (chosen := find_extremes()):
                        comparing = workers[0].compare.remote(list(chosen.values()), COMPARED)
                        if not _pending([comparing], LIMIT):
                            ratios = dict(zip(chosen, ray.get(comparing), strict=False))
    if here:
        tell(f"timing one of {timed} simultaneous trainings")
        # The worker sets as many threads as a trial has.
        with threads(torch.get_num_threads()), measurements.keep_busy((timed - 1) * max(1, int(shape.cpus))):
            worker = measurements.PaceWorker(*_arguments(trainings, shape))
            pace = worker.measure(TIMED)
            count_until(lambda: monotonic() > until - 2 * COMPARED)
            if pace.step < SLOW and (chosen := find_extremes()):
                ratios = dict(zip(chosen, worker.compare(list(chosen.values()), COMPARED), strict=False))
        # MLflow's process, and then the workers, import about the same modules as this process.
        importing = min(imported, IMPORTS) * pace.load
        startup += importing * (1 + max(1.0, timed / sum(node.get("CPU", 0) for node in available)))
    return Timing(
        pace=pace,
        startup=startup,
        shape=shape,
        fraction=None if fraction is None else str(fraction),
        slots=slots,
        timed=timed,
        ratios=ratios,
        until=until,
    )


def _forecast(ready: Prepared, models: Sequence[ExampleModel], timing: Timing) -> Preview:
    question, plan, baseline, pace = ready.settings.question, ready.plan, ready.baseline, timing.pace
    resource = expected_resource(plan)
    epoch = measuring = hours = None
    if pace is not None:
        # A training function has its data itself.
        epoch = _epoch(ready, pace, timing.shape) if ready.task.size("validation") else None
        # Before a trial trains, models are built, and steps are timed.
        least = FIRST_STEPS * pace.step + FIRST_PASSES * pace.validation
        fraction = MEASURING_FRACTION * plan.budget * (epoch or 0.0)
        measuring = MODELS * pace.model + max(least, ALLOWED * pace.load, fraction)
        if epoch is not None and plan.trials is not None:
            trial = measuring + resource * epoch
            hours = (timing.startup + plan.trials * trial / min(timing.slots, plan.trials)) / 3600
    large = max(models, key=lambda model: model.macs)
    # Weights and the two averages of the optimiser, in float32; twice, as the next file is written first.
    checkpoint = (16 if baseline.training.average else 12) * large.params
    cached = ready.task.shared_name(baseline) is not None
    files = ready.task.stored_files(("train", "validation")) if cached else {}
    data, fetching = shared.measure_fetch(files.values())
    error = ready.task.metric.standard_error(LIKELY, ready.task.size("validation"))
    return Preview(
        space=question.space_name,
        smallest=min(models, key=lambda model: model.macs),
        largest=large,
        models=len(models),
        steps=sorted((ratio, models[i].what) for i, ratio in timing.ratios.items()),
        startup=timing.startup,
        measuring=measuring,
        step=None if pace is None else pace.step,
        epoch=epoch,
        timed=timing.timed,
        epochs=plan.budget,
        resource=resource,
        prunes=plan.pruning,
        trials=plan.trials,
        slots=timing.slots,
        hours=hours,
        disk=checkpoint * (ready.settings.place.keep + 1 + 2 * timing.slots),
        data=data,
        fetching=fetching,
        gpus=timing.fraction,
        detectable=None if error is None else detectable(NOISE * sqrt(2) * error, SEEDS),
    )


def _pending(calls: Sequence[Any], seconds: float) -> bool:
    """Wait for calls of workers, at most `seconds`. Return True if some have not ended."""
    return len(ray.wait(list(calls), num_returns=len(calls), timeout=max(0.0, seconds))[0]) < len(calls)


def _arguments(trainings: Trainings, shape: TrialResources) -> tuple[Any, ...]:
    baseline, arithmetic = trainings.baseline, trainings.terms.arithmetic
    config = make_worker_config(baseline, shape.workers)
    return config, baseline.code(), shape.cpus, shape.gpus, arithmetic, trainings.data


def _epoch(ready: Prepared, pace: measurements.Pace, shape: TrialResources) -> float:
    """Return the time of an epoch of the baseline [s]: steps, and validations with their checkpoints."""
    task = ready.task
    inputs = 2 * make_worker_config(task.config, shape.workers).training.batch_size
    passes = ceil(task.size("validation") / (inputs * shape.workers))
    return task.steps() * pace.step + ready.plan.reports * (passes * pace.validation + pace.checkpoint)

"""Estimates the cost and power of a search before it is started: `automl search --dry-run`."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from math import sqrt
from time import monotonic

import ray
import torch
from scipy.stats import t as student

from automl.config.settings import Settings, draw_baseline
from automl.config.units import duration, short
from automl.costs.forecast import model_cost
from automl.costs.time_ratio import ALLOWED, MEASURING_FRACTION, own_time_ratio
from automl.search.run import check_models, make_plan, with_weights
from automl.tasks import open_task
from automl.trials.trial import granted
from cluster.connect import connect, nodes
from cluster.resources import TrialResources, slots
from search.config import TrialConfig
from search.halving import REDUCTION, Rungs
from search.record import model_name
from search.size import Size, measure_size
from search.spaces import random_draws

DRAWS = 100  # configurations of the space that are drawn to find its extremes
SEEDS = 10  # of `confirm`

# How much accuracies vary from seed to seed, as a multiple of the spread of as many coin flips as there are
# test inputs: 0.88 points on the 3,929 of Imagewoof, where it takes 25 seeds an arm to see the 0.7 points of
# SimpleSelfAttention.
NOISE = 1.8


@dataclass(frozen=True, kw_only=True)
class ExampleModel:
    """A model of the space: what it is, its parameters and its MACs for one input."""

    what: str
    params: int
    macs: int


@dataclass(frozen=True, kw_only=True)
class Preview:
    """The forecast of a search.

    smallest, largest: by MACs, of 100 random draws and the baseline.
    startup: seconds until the first trial runs, as it took here. measuring: seconds at most that a trial's
        time ratio is measured. epoch: of a baseline's epoch where trials run. resource: epochs that a
        trial takes on the average, as halving goes. trunks: plain trainings that the others go on from.
    hours: of the whole search on this cluster with its slots; None where the time is limited, not the trials.
    disk: bytes of checkpoints at most.
    detectable: the least difference of the metric that `confirm` would detect with 10 seeds and 80 % power.
    """

    space: str
    size: Size
    smallest: ExampleModel
    largest: ExampleModel
    startup: float
    measuring: float
    epoch: float
    epochs: float
    resource: float
    trunks: int
    trials: int | None
    slots: int
    hours: float | None
    disk: float
    detectable: float | None

    def lines(self) -> Iterator[str]:
        """The forecast as people read it."""
        size = self.size
        yield (
            f"space       {self.space}: about {short(size.combinations)} combinations (standard error "
            f"{short(size.error)}), with up to {size.continuous} continuous numbers each"
        )
        for name, model in (("smallest", self.smallest), ("largest", self.largest)):
            yield f"{name:11} {short(model.params)} parameters, {short(model.macs)} MACs: {model.what}"
        yield f"epoch       {self.epoch:.1f} s for the baseline"
        why = f"all but {self.trunks} go on from these" if self.trunks else "the weak ones are pruned"
        yield (
            f"trial       {self.epochs:g} epochs of the baseline's time; {self.resource:.2g} on the average, "
            f"as {why}"
        )
        yield (
            f"start       {duration(self.startup)} until the first trial runs, and up to "
            f"{duration(self.measuring)} to measure the time of each"
        )
        if self.hours is not None:
            yield (
                f"search      {self.trials} trials, {self.slots} at a time: about "
                f"{duration(3600 * self.hours)}, {self.hours * self.slots:.2g} device hours"
            )
        yield f"disk        {self.disk / 1e6:.0f} MB of checkpoints at most"
        if self.detectable is not None:
            yield (
                f"confirm     {SEEDS} seeds would detect a difference of {100 * self.detectable:.1f} points "
                f"with 80 % power, on a test split of the validation split's size"
            )


def preview(settings: Settings) -> Preview:
    """Forecast a search. Measures one model for seconds; trains nothing.

    Raises InputError for what `run_search` would.
    """
    settings = with_weights(settings)
    space = settings.load_space()
    baseline = draw_baseline(space, settings)
    task = open_task(baseline, settings.runtime)
    check_models([baseline], settings)
    plan = make_plan(settings, baseline, task)
    begun = monotonic()
    with connect():
        shape = settings.shape
        there = [node.resources for node in nodes(shape.labels).values() if not node.draining]
        if settings.gpus_per_trial is None and any(node.get("GPU") for node in there):
            shape = replace(shape, gpus=1)
        capacity = slots(shape, there)
        # Where a trial would run, and with what it would be given.
        worker = ray.remote(
            num_cpus=shape.cpus,
            num_gpus=shape.gpus,
            resources=dict(shape.custom),
            label_selector=dict(shape.labels),
        )(_epoch)
        epoch: float = ray.get(worker.remote(baseline, settings, shape))
        startup = monotonic() - begun
    drawn = [settings.adjust(config) for _, config in random_draws(space, DRAWS) if config]
    models = [_model(config, settings) for config in (baseline, *drawn)]
    small = min(models, key=lambda model: model.macs)
    large = max(models, key=lambda model: model.macs)
    trunks = settings.trunks if settings.grafts else 0
    resource = (
        grafted_resource(plan.budget, baseline.training.graft_at, trunks, plan.trials)
        if trunks
        else expected_resource(plan.budget)
    )
    measuring = max(ALLOWED, MEASURING_FRACTION * plan.budget * epoch)
    at_once = settings.concurrent or capacity
    hours = None
    if plan.trials is not None:
        hours = (startup + plan.trials * (measuring + resource * epoch) / min(at_once, plan.trials)) / 3600
    # Weights and the two averages of the optimiser, in float32, and the file that replaces the last one.
    checkpoint = (16 if baseline.training.average else 12) * large.params
    return Preview(
        space=settings.space_name,
        size=measure_size(space),
        smallest=small,
        largest=large,
        startup=startup,
        measuring=measuring,
        epoch=epoch,
        epochs=plan.budget,
        resource=resource,
        trunks=trunks,
        trials=plan.trials,
        slots=at_once,
        hours=hours,
        disk=checkpoint * (settings.keep + 1 + trunks + 2 * at_once),
        detectable=detectable(task.size("validation"), SEEDS) if task.metric.noise == "binomial" else None,
    )


def _epoch(baseline: TrialConfig, settings: Settings, shape: TrialResources) -> float:
    """Seconds of an epoch of the baseline."""
    torch.set_num_threads(max(1, int(shape.cpus)))
    runtime = replace(settings.runtime, device=granted(shape.gpus), memory_fraction=min(1, shape.gpus) or 1)
    return own_time_ratio(open_task(baseline, runtime)).epoch


def expected_resource(budget: float) -> float:
    """The mean resource of a trial when a third continues at each rung."""
    marks = [0.0, *Rungs(budget).milestones, budget]
    return float(sum((b - a) / REDUCTION**i for i, (a, b) in enumerate(pairwise(marks))))


def grafted_resource(budget: float, graft_at: int, trunks: int, trials: int | None) -> float:
    """The mean resource of a trial when all but the trunks begin at epoch `graft_at`.

    trials: None for as many as there is time for.
    """
    part = 0.0 if trials is None else min(1.0, trunks / trials)
    return budget - graft_at + part * graft_at


def detectable(inputs: int, seeds: int, accuracy: float = 0.9) -> float:
    """The difference of two arms' accuracies that a paired t-test at 5 % finds with a power of 80 %."""
    spread = NOISE * sqrt(2 * accuracy * (1 - accuracy) / inputs)
    degrees = seeds - 1
    return float((student.ppf(0.975, degrees) + student.ppf(0.8, degrees)) * spread / sqrt(seeds))


def _model(config: TrialConfig, settings: Settings) -> ExampleModel:
    expected = model_cost(config, settings.runtime)
    placement = config.model.placement
    name = model_name(config.model.backbone, config.model.options)
    where = " + ".join(f"{spec} at {site}" for site, spec in placement.items()) or "no attention"
    return ExampleModel(what=f"{name}, {where}", params=expected.params, macs=expected.macs)

"""Results of a confirmation's trainings: each variant's score and cost at each seed."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from automl.base.lazy import numpy as np
from automl.judge.statistics import ALPHA, Difference, Ratio, paired, paired_ratio
from automl.judge.variants import Variant
from search.metric import Metric
from search.record import Metrics, State, TrialRecord

TIMING_ERROR = 0.02  # of a ratio of steps timed in turn, beyond its interval, as pairs of one model show
GATE = "gate."  # prefix of a site's name in the metrics of an epoch
WATCHED = 0.75  # fraction of a training after which its curve is watched

Histories = Sequence[Sequence[Metrics]]  # the epochs of trainings, in the order of the seeds


@dataclass(frozen=True, kw_only=True)
class TrainingCost:
    """Cost of a training: steps, and seconds of its epochs by the clock and of the processor.

    A value is None if it was not recorded for the whole training. Processor time is measured on the CPU, also
    for GPU trainings.
    """

    steps: float | None = None
    seconds: float | None = None
    processor_seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Score of a variant at each seed, or the reason why it is missing.

    Attributes:
        failed: The reason why the variant cannot be trained with a seed, such as a diverging loss.
        errors: Crashes, which are not the fault of the variant.
        failed_attempts: How many trainings crashed, where any did. Some were tried again.
        costs: The costs of the trainings that have a score.
        values: The contribution of each test input to the score, `(inputs,)`, where it was kept in
            `automl.storage.trial_files`.
        devices: The names of the devices of the trainings, where they are known.
        ratios: The time of an epoch before each training, divided by the search's baseline's.
        gates: The largest absolute gate of the modules after each training, where there are any.
    """

    scores: Mapping[int, float] = field(default_factory=dict)
    failed: Mapping[int, str] = field(default_factory=dict)
    errors: Mapping[int, str] = field(default_factory=dict)
    failed_attempts: Mapping[int, int] = field(default_factory=dict)
    costs: Mapping[int, TrainingCost] = field(default_factory=dict)
    values: Mapping[int, Any] = field(default_factory=dict, compare=False)
    devices: Mapping[int, str] = field(default_factory=dict)
    ratios: Mapping[int, Ratio] = field(default_factory=dict)
    gates: Mapping[int, float] = field(default_factory=dict)

    def ended(self, seed: int) -> bool:
        """Return whether the training with this seed has ended, with or without a score."""
        return seed in self.scores or seed in self.failed or seed in self.errors

    def mean_cost(self, name: str, seeds: Collection[int] | None = None) -> float | None:
        """Return a mean cost of the trainings, by default of all, or None if not all are known."""
        seeds = self.costs if seeds is None else seeds
        costs = [getattr(self.costs[seed], name) for seed in seeds if seed in self.costs]
        known = [cost for cost in costs if cost is not None]
        return fmean(known) if known and len(known) == len(seeds) else None

    def spent(self, seed: int, name: str, *, per_step: bool = False) -> float:
        """Return the time of a training, or for a step of it. 0 if it is not known."""
        cost = self.costs.get(seed, TrainingCost())
        steps = cost.steps if per_step else 1
        return (getattr(cost, name) or 0.0) / steps if steps else 0.0

    def timed(self, seeds: Sequence[int]) -> Ratio | None:
        """Return the time of the trainings, divided by that of the search's baseline, by their timed steps.

        A training has the steps that its own ratio gave it. The most precise ratio shows their time.
        """
        ratios = [self.ratios[seed] for seed in seeds if seed in self.ratios]
        if not ratios or len(ratios) < len(seeds):
            return None
        best, steps = min(ratios, key=lambda ratio: ratio.high / ratio.low), fmean(1 / r.mean for r in ratios)
        return Ratio(mean=best.mean * steps, low=best.low * steps, high=best.high * steps)

    def largest_gate(self, seeds: Sequence[int]) -> float | None:
        """Return the largest absolute gate that was learned, or None if not all seeds have it."""
        gates = [self.gates[seed] for seed in seeds if seed in self.gates]
        return max(gates) if len(gates) == len(seeds) else None


def time_ratio(
    variant: Scores,
    baseline: Scores,
    seeds: Sequence[int],
    alpha: float = ALPHA,
    find: Callable[[Sequence[float], Sequence[float], float], Ratio] = paired_ratio,
    *,
    per_step: bool = False,
) -> Ratio | None:
    """Return the ratio of two variants' training times at the same seeds, or None if it is not known.

    With `per_step`, it is of the times for a step, each with its share of the validation.
    Processor time is used if all trainings have it, because other processes on the machine hardly change it.
    `alpha` is the level of the interval, and `find` computes it.
    """
    for name in ("processor_seconds", "seconds"):
        first, second = (
            [trained.spent(seed, name, per_step=per_step) for seed in seeds]
            for trained in (variant, baseline)
        )
        if len(seeds) >= 2 and all(seconds > 0 for seconds in first + second):
            return find(first, second, alpha)
    return None


def most_time(variant: Scores, baseline: Scores, seeds: Sequence[int], alpha: float = ALPHA) -> float | None:
    """Return the upper end of the ratio of two variants' training times, or None if it is not known.

    The trainings' own times may be noisy. But before each training its steps were timed beside those of the
    search's baseline, in turn. So the ratio is also known from the steps of each training and from the most
    precise of these timings. The smaller end of both counts.
    """
    ratio = time_ratio(variant, baseline, seeds, alpha)
    ends = [] if ratio is None else [ratio.high]
    (ours, theirs) = (scores.timed(seeds) for scores in (variant, baseline))
    if ours is not None and theirs is not None:
        ends.append(ours.high / theirs.low * (1 + TIMING_ERROR))
    return min(ends, default=None)


def unequal_failures(ours: Scores, theirs: Scores, seeds: Iterable[int]) -> list[bool]:
    """Return for each seed whether trainings of one variant failed more often than those of the other."""
    return [ours.failed_attempts.get(seed) != theirs.failed_attempts.get(seed) for seed in seeds]


def training_cost(record: TrialRecord) -> TrainingCost:
    """Return the cost of a training from the records of its epochs."""

    def total(name: str) -> float | None:
        if not record.history or any(name not in metrics for metrics in record.history):
            return None
        return sum(metrics[name] for metrics in record.history)

    steps = record.history[-1].get("steps") if record.history else None
    return TrainingCost(steps=steps, seconds=total("seconds"), processor_seconds=total("processor_seconds"))


def collect(
    variants: Iterable[Variant],
    records: Iterable[TrialRecord],
    metric: str,
    seeds: Sequence[int],
    values: Callable[[TrialRecord], "np.ndarray | None"] = lambda record: None,
    failed: Iterable[TrialRecord] = (),
) -> dict[str, Scores]:
    """Return the scores of each variant at these seeds, from the trials that have ended.

    `values` returns the contribution of each test input to a finished trial's score, or None if it is not
    known. `failed` are trials that ended in an error, also those that were tried again.
    """
    attempts = Counter((record.variant, record.config.seed) for record in failed)
    ended: dict[str, list[TrialRecord]] = {variant.name: [] for variant in variants}
    for record in records:
        if record.variant in ended and record.config.seed in seeds:
            ended[record.variant].append(record)
    return {
        name: _scores(trials, metric, values, {seed: n for seed in seeds if (n := attempts[name, seed])})
        for name, trials in ended.items()
    }


def _scores(
    records: Sequence[TrialRecord],
    metric: str,
    values: Callable[[TrialRecord], "np.ndarray | None"],
    attempts: Mapping[int, int],
) -> Scores:
    done = {record.config.seed: record for record in records if record.state is State.COMPLETE}
    failed = [record for record in records if record.state is State.INFEASIBLE]
    broken = [record for record in records if record.state is State.ERROR and record.config.seed not in done]
    return Scores(
        scores={seed: record.value(metric) for seed, record in done.items()},
        failed={record.config.seed: record.reason or "cannot be trained" for record in failed},
        errors={record.config.seed: record.reason or "an error" for record in broken},
        failed_attempts=attempts,
        costs={seed: training_cost(record) for seed, record in done.items()},
        values={seed: kept for seed, record in done.items() if (kept := values(record)) is not None},
        devices={seed: record.device for seed, record in done.items() if record.device},
        ratios={seed: ratio for seed, record in done.items() if (ratio := _ratio(record)) is not None},
        gates={seed: gate for seed, record in done.items() if (gate := _gate(record)) is not None},
    )


def _ratio(record: TrialRecord) -> Ratio | None:
    """Return the time ratio that a training's steps come from, or None if it was not measured."""
    mean, low, high = (record.profile.get(f"time_ratio{end}", 0.0) for end in ("", "_low", "_high"))
    return Ratio(mean=mean, low=low, high=high) if min(mean, low, high) > 0 else None


def _gate(record: TrialRecord) -> float | None:
    """Return the largest absolute gate of the modules after a training, or None without gates."""
    gates = [abs(gate) for name, gate in record.history[-1].items() if name.startswith(GATE)]
    return max(gates, default=None)


def find_rise(histories: Histories, metric: Metric, margin: float) -> Difference | None:
    """Return how much the validation score still rose at the end of training, over all seeds.

    It is the score after the last epoch, minus the score after the last epoch that had ended by three
    quarters of the training. Above 0 is better, whatever the direction of the metric. Returns None with
    fewer than two seeds, or if a training has no such epoch.
    """
    rises = []
    for history in histories:
        scored = [epoch for epoch in history if metric.name in epoch]
        before = [epoch for epoch in scored if epoch["resource"] <= WATCHED * scored[-1]["resource"]]
        if not before:
            return None
        rises.append(metric.sign * metric.scale * (scored[-1][metric.name] - before[-1][metric.name]))
    return paired(rises, margin=margin) if len(rises) >= 2 else None

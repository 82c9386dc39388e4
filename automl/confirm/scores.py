"""The results of a confirmation's trainings: each variant's score and cost at each seed."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from automl.confirm.variants import Variant
from search.record import State, TrialRecord

GATE = "gate."  # before a site's name in the metrics of an epoch


@dataclass(frozen=True, kw_only=True)
class TrainingCost:
    """What a training took: steps, and seconds of its epochs by the clock and of the processor.

    Seconds of a training whose placement goes in later are of the epochs since then, or of the same epochs of
    the plain training; those before are one and the same for all.
    Each is None where it was not recorded for the whole training; the processor's is that on a GPU, too.
    """

    steps: float | None = None
    seconds: float | None = None
    processor_seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Of a variant: the score at each seed, or why there is none.

    failed: it cannot be trained with that seed, such as when its loss diverges. errors: crashes, which say
    nothing about the variant.
    costs: of the trainings that have a score. values: what each test input contributed to it, `(inputs,)`, as
    in `automl.storage.answers`, where that is kept. devices: names of those that trained, where they are
    known. gates: the largest |gate| of its modules after each of the trainings, where there are any.
    counted: for at least one of them the time ratio was partly estimated from operation counts.
    """

    scores: Mapping[int, float] = field(default_factory=dict)
    failed: Mapping[int, str] = field(default_factory=dict)
    errors: Mapping[int, str] = field(default_factory=dict)
    costs: Mapping[int, TrainingCost] = field(default_factory=dict)
    values: Mapping[int, np.ndarray] = field(default_factory=dict)
    devices: Mapping[int, str] = field(default_factory=dict)
    gates: Mapping[int, float] = field(default_factory=dict)
    counted: bool = False

    def ended(self, seed: int) -> bool:
        return seed in self.scores or seed in self.failed or seed in self.errors


def training_cost(record: TrialRecord) -> TrainingCost:
    """What a training took, from the records of its epochs."""

    insert_at = record.config.training.insert_at
    own = [metrics for metrics in record.history if metrics["epoch"] > insert_at]

    def total(name: str) -> float | None:
        if not own or any(name not in metrics for metrics in own):
            return None
        return sum(metrics[name] for metrics in own)

    steps = record.history[-1].get("steps") if record.history else None
    return TrainingCost(steps=steps, seconds=total("seconds"), processor_seconds=total("processor_seconds"))


def collect(
    variants: Iterable[Variant],
    records: Iterable[TrialRecord],
    metric: str,
    seeds: Sequence[int],
    values: Callable[[TrialRecord], np.ndarray | None] = lambda record: None,
) -> dict[str, Scores]:
    """The scores of each variant at these seeds, from the trials that have ended.

    values: what each test input contributed to a finished trial's score, None where that is not known.
    """
    scores: dict[str, dict[int, float]] = {variant.name: {} for variant in variants}
    failed: dict[str, dict[int, str]] = {name: {} for name in scores}
    errors: dict[str, dict[int, str]] = {name: {} for name in scores}
    costs: dict[str, dict[int, TrainingCost]] = {name: {} for name in scores}
    kept: dict[str, dict[int, np.ndarray]] = {name: {} for name in scores}
    devices: dict[str, dict[int, str]] = {name: {} for name in scores}
    gates: dict[str, dict[int, float]] = {name: {} for name in scores}
    counted = set()
    for record in records:
        seed = record.config.seed
        if record.variant not in scores or seed not in seeds:
            continue
        if record.state is State.COMPLETE:
            scores[record.variant][seed] = record.value(metric)
            costs[record.variant][seed] = training_cost(record)
            if record.device:
                devices[record.variant][seed] = record.device
            if (found := values(record)) is not None:
                kept[record.variant][seed] = found
            learned = [abs(gate) for name, gate in record.history[-1].items() if name.startswith(GATE)]
            if learned:
                gates[record.variant][seed] = max(learned)
            if record.profile.get("time_ratio_counted"):
                counted.add(record.variant)
        elif record.state is State.INFEASIBLE:
            failed[record.variant][seed] = record.reason or "it cannot be trained"
        elif record.state is State.ERROR:
            errors[record.variant][seed] = record.reason or "an error"
    return {
        name: Scores(
            scores=scores[name],
            failed=failed[name],
            errors={seed: why for seed, why in errors[name].items() if seed not in scores[name]},
            costs=costs[name],
            values=kept[name],
            devices=devices[name],
            gates=gates[name],
            counted=name in counted,
        )
        for name in scores
    }

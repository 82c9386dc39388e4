"""Compare trained models with the statistics of a confirmation: `automl compare`."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from automl.base.errors import InputError, unknown
from automl.base.options import format_command, with_keywords_of
from automl.base.units import decimals
from automl.data.manifest import Manifest
from automl.judge.decision import Outcome, holm_factors, step_down
from automl.judge.options import CompareOptions
from automl.judge.protocol import confirmations
from automl.judge.recorded import read_verdicts
from automl.judge.statistics import ALPHA, Difference, paired, unpaired
from automl.storage.folder import exists, find_model_search, resolve_search
from automl.storage.metadata import SearchMetadata
from automl.task.same_data import check_same_manifests, read_manifest
from search.config import TrialConfig
from search.metric import Metric, signed_unit
from search.record import Role, format_options, model_name, placement_name

SPLITS = ("test", "validation")


@dataclass(frozen=True, kw_only=True)
class VariantScores:
    """Scores of a compared model on the split of the comparison.

    Attributes:
        name: The name as it was given.
        label: A short name.
        count: The number of seeds.
        mean: The mean score of the last epochs.
        sd: The standard deviation of these, or None for one seed.
        best_mean: The mean of each training's best epoch, or None if these are not known.
        best_sd: The standard deviation of these.
        scale: The factor that these are multiplied by for display.
        unit: The unit of a displayed score.
    """

    name: str
    label: str
    count: int
    mean: float
    sd: float | None
    best_mean: float | None = None
    best_sd: float | None = None
    scale: float = 1.0
    unit: str = ""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A model to compare, trained with several seeds.

    Attributes:
        name: The name as it was given.
        config: The configuration, apart from the seed.
        metric: The metric of the trainings.
        scores: The score of each split at each seed.
        label: A short name of the model; empty to use `name`.
        best: The validation score of the best epoch at each seed.
        resolution: The effect of one test input, in the metric's unit, or 0 if it is not known.
        digest: The first 16 characters of the digest of the search's data, or None without a search.
        images: The manifest of the search's data, if its folder was named.
    """

    name: str
    config: TrialConfig
    metric: Metric | None
    scores: Mapping[str, Mapping[int, float]]
    label: str = ""
    best: Mapping[int, float] = field(default_factory=dict)
    resolution: float = 0.0
    digest: str | None = None
    images: Manifest | None = None

    def variant(self, split: str, label: str) -> VariantScores:
        """Summarize the scores of a split."""
        scores, best = self.scores[split].values(), self.best.values() if split == "validation" else ()
        return VariantScores(
            name=self.name,
            label=label,
            count=len(scores),
            mean=fmean(scores),
            sd=stdev(scores) if len(scores) > 1 else None,
            best_mean=fmean(best) if best else None,
            best_sd=stdev(best) if len(best) > 1 else None,
            scale=1.0 if self.metric is None else self.metric.scale,
            unit="" if self.metric is None else self.metric.unit,
        )


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A model compared with the first one.

    Attributes:
        name: The name as it was given.
        variant: The scores of the model.
        reference: The scores of the first model.
        outcome: `better`, `worse`, `equivalent`, `undecided` or `cannot tell`.
        paired: True if both were trained with the same seeds.
        difference: The difference with its interval.
        p_holm: The p-value, adjusted for all comparisons of the call.
        sentence: The comparison in words.

    Example:
        After the example of `run_compare`:

        >>> compared.variant.count == compared.reference.count
        True
    """

    name: str
    variant: VariantScores
    reference: VariantScores
    outcome: Outcome
    paired: bool
    difference: Difference
    p_holm: float
    sentence: str

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as JSON."""
        d = self.difference
        return {
            **{key: getattr(self, key) for key in ("name", "outcome", "paired", "p_holm", "sentence")},
            "difference": d.mean,
            "interval": d.bounds,
            "p": d.p,
            "seeds": d.count,
        }


@with_keywords_of(CompareOptions)
def run_compare(*searches: Any, **options: Any) -> list[Compared]:
    """Compare the second and further models with the first.

    Scores are those of the test split if all models have them, otherwise of the validation split. Models with
    two or more common seeds are compared pair by pair. Holm's procedure covers all comparisons of the call.
    It does not cover the choice of a finalist by the scores of its confirmation: for that, see the verdict.

    Returns:
        A comparison for each model after the first.

    Raises:
        InputError: A model does not exist, or models cannot be compared: other tasks or data, a single seed.

    Example:
        >>> import automl
        >>> (compared,) = automl.run_compare(["example:baseline", "example"])
        >>> compared.paired
        True
    """
    asked = CompareOptions(*searches, **options)
    if not asked.searches or isinstance(asked.searches, str):
        raise InputError(
            "name the models to compare in a list: searches, SEARCH:VARIANT, or MLflow run IDs with commas"
        )
    named = [resolve_search(search, asked.storage) for search in asked.searches]
    if len(named) == 1:
        latest = resolve_search(None, asked.storage or named[0][1])
        if named[0] == latest:
            raise InputError(f"{latest[0]!r} is the latest search itself; name two or more to compare")
        named = [*named, latest]
    if asked.margin is not None and not 0 <= asked.margin < inf:
        raise InputError(f"--margin must be 0 or more; got {asked.margin:g}")
    samples = [_read_sample(name, location) for name, location in named]
    first = samples[0]
    for other in samples[1:]:
        _check_comparable(first, other)
    split = next((split for split in SPLITS if all(split in sample.scores for sample in samples)), None)
    if split is None:
        has = "; ".join(f"{sample.name} has {', '.join(sample.scores)}" for sample in samples)
        raise InputError(f"no split has scores of all: {has}")
    return _compare(samples, split, asked.margin)


def _compare(samples: Sequence[Sample], split: str, margin: float | None) -> list[Compared]:
    first, *others = samples
    metric = first.metric
    assert metric is not None, "_check_comparable reports it"
    resolution = max(sample.resolution for sample in samples) if split == "test" else 0.0
    margin = metric.margin_over(resolution) if margin is None else margin
    digits, gap = decimals(margin), signed_unit(metric.gap_unit, metric.maximize)
    tests = [_test(first, other, split, margin, resolution) for other in others]
    ps = [test().p for test in tests]
    factors = holm_factors(ps)
    details = f", adjusted for {len(ps)} comparisons" if len(ps) > 1 else ""
    coarse = f", margin {margin:.3g}, the effect of one input" if 0 < margin == resolution else ""
    reference_label, *labels = _labels(samples)
    reference = first.variant(split, reference_label)
    comparisons = []
    for i, (sample, label) in enumerate(zip(others, labels, strict=True)):
        d = tests[i](alpha=ALPHA / factors[i])
        p, is_paired = min(1.0, factors[i] * d.p), tests[i].func is paired
        outcome = _outcome(
            d, is_claimed=step_down(ps, lambda alpha: alpha)[i], is_coarse=0 < margin < resolution
        )
        seeds = f"{d.count} paired seeds" if is_paired else f"{d.count} or more seeds each, not paired"
        sentence = (
            f"{label} against {reference_label}: {outcome}, {d.mean:+.{digits}f} {gap} "
            f"({d.in_words(digits)}, p = {p:.2g}{details}, {seeds}, {split} split{coarse})"
        )
        comparisons.append(
            Compared(
                name=sample.name,
                variant=sample.variant(split, label),
                reference=reference,
                outcome=outcome,
                paired=is_paired,
                difference=d,
                p_holm=p,
                sentence=sentence,
            )
        )
    return comparisons


def _test(first: Sample, other: Sample, split: str, margin: float, resolution: float) -> partial[Difference]:
    """Return the test of two models' difference, which takes its level: pair by pair if possible."""
    assert first.metric is not None, "_check_comparable reports it"
    sign = first.metric.sign * first.metric.scale
    reference, scores = first.scores[split], other.scores[split]
    both = sorted(scores.keys() & reference.keys())
    if len(both) >= 2:
        gaps = [sign * (scores[seed] - reference[seed]) for seed in both]
        return partial(paired, gaps, margin=margin, resolution=resolution)
    if min(len(scores), len(reference)) < 2:
        raise InputError(
            f"one seed does not show the spread over seeds: {first.name} has {len(reference)} and "
            f"{other.name} has {len(scores)}. Name runs with two or more seeds each."
        )
    ours, theirs = ([sign * score for score in by_seed.values()] for by_seed in (scores, reference))
    return partial(unpaired, ours, theirs, margin=margin)


def _outcome(d: Difference, *, is_claimed: bool, is_coarse: bool) -> Outcome:
    if is_claimed:
        return "better" if d.mean > 0 else "worse"
    if is_coarse or not d.bounds or d.low == d.high:
        return "cannot tell"  # The margin is below one input, or the spread is not known.
    return "equivalent" if d.p_margin <= ALPHA else "undecided"


def _labels(samples: Sequence[Sample]) -> list[str]:
    """Return a unique short name for each sample."""
    # Equal models are distinguished by the settings in which they differ, or else by the first run ID.
    labels = [sample.label or sample.name for sample in samples]
    flat = [  # the settings of each training, with those of its model
        {**c.to_json()["training"], **c.model.options, "size": getattr(c.data, "size", None)}
        for c in (sample.config for sample in samples)
    ]
    unique = []
    for i, label in enumerate(labels):
        same = [j for j, other in enumerate(labels) if other == label]
        if len(same) > 1 and samples[i].label:
            keys = [key for key in flat[i] if any(flat[j].get(key) != flat[i][key] for j in same)]
            differing = format_options({key: flat[i][key] for key in keys})
            label = f"{label}, {differing or samples[i].name.partition(',')[0][:8]}"
        unique.append(label)
    return unique


def _check_comparable(sample: Sample, other: Sample) -> None:
    if sample.config.task != other.config.task:
        tasks = f"{sample.name} is of task {sample.config.task}, {other.name} of {other.config.task}"
        raise InputError(f"{tasks}; their scores are not comparable")
    for compared in (sample, other):
        if compared.metric is None:
            raise InputError(
                f"the metric of the user-defined task {compared.config.task} is not logged with "
                f"{compared.name}, and compare does not run its code. Name the search and its variant."
            )
    first, second = (compared.metric.name for compared in (sample, other) if compared.metric)
    if first != second:
        metrics = f"{sample.name} has the metric {first}, {other.name} has {second}"
        raise InputError(f"{metrics}; their scores are not comparable")
    # The size of images is an option of the model. The set of images is not.
    listed = sample.images is not None and other.images is not None  # then their folders do not matter
    data = [
        {**asdict(d), "size": None, "path": None if listed else d.path}
        for d in (sample.config.data, other.config.data)
    ]
    if data[0] != data[1]:
        raise InputError(
            f"{sample.name} and {other.name} have different data in their splits: "
            + " and ".join(json.dumps({k: v for k, v in d.items() if k != "size"}) for d in data)
        )
    if sample.images is not None and other.images is not None:
        check_same_manifests(sample.images, other.images, (sample.name, other.name))
        return
    digests = [compared.digest for compared in (sample, other) if compared.digest]
    if sample.config.data == other.config.data and len(set(digests)) > 1:
        raise InputError(
            f"{sample.name} and {other.name} were trained on different data ({', '.join(digests)}); "
            f"`automl compare` names the first that differ when both searches are named"
        )


def _read_sample(name: str, storage: str) -> Sample:
    search, colon, variant = name.partition(":")
    if "," not in search and exists(search, storage):  # Many IDs are too long for a file name.
        folder, metadata = find_model_search(search, storage)
        return _read_search_sample(name, folder, metadata, variant if colon else None)
    return _read_runs_sample(name, storage)


def _read_search_sample(name: str, folder: Path, metadata: SearchMetadata, wanted: str | None) -> Sample:
    folders, verdicts = confirmations(folder), read_verdicts(folder, metadata)
    confirm = format_command("confirm --search", metadata.name, metadata.storage)
    if not verdicts or verdicts[-1][0] != folders[-1]:
        raise InputError(
            f"search {metadata.name!r} has not been confirmed, and one seed per trial does not show the "
            f"spread over seeds. Run: {confirm}"
        )
    verdict = verdicts[-1][1]
    variants = {variant.name: variant for variant in verdict.variants}
    if not verdict.complete:
        raise InputError(f"the confirmation of {metadata.name!r} has not ended; resume it: {confirm}")
    text = wanted if wanted is not None else (verdict.finalist or "")
    names = [key for key in variants if key == text]
    if text == Role.BASELINE:  # the tuned baseline, which is first
        names = list(variants)[:1]
    names = names or [key for key in variants if text in key]
    if len(names) != 1:
        raise unknown(f"variant of {folder.name}", text, list(variants))
    variant = variants[names[0]]
    if not variant.scores:
        raise InputError(
            f"{names[0]!r} of {folder.name} has not been trained, because no finalist is better. Train it "
            f"with: {confirm} --controls"
        )
    return Sample(
        name=name,
        config=variant.config,
        metric=metadata.plan.metric,
        scores={"test": variant.scores},
        resolution=verdict.design.resolution,
        digest=metadata.data[:16],
        images=read_manifest(folder),
    )


def _read_runs_sample(name: str, storage: str) -> Sample:
    from automl.tracking.runs import find_scores

    if os.path.isdir(name):
        raise InputError(
            f"{name!r} is a folder. automl compare takes names of searches in {storage} and runs of MLflow; "
            f"automl referee compares training commands of your own"
        )
    runs = []
    for run_id in name.split(","):
        try:
            runs.append(find_scores(run_id.strip()))
        except InputError as error:
            raise InputError(f"{name!r} is neither a search in {storage} nor a run: {error}") from error
    config, primary = runs[0].config, runs[0].primary
    metric = "" if primary is None else primary.name
    scores: dict[str, dict[int, float]] = {}
    for run in runs:
        if run.config.change(seed=0) != config.change(seed=0):
            raise InputError(
                f"the runs of {name!r} differ in more than their seeds. Join only runs of one configuration."
            )
        for split, key in (("test", f"test_{metric}"), ("validation", metric)):
            if key in run.metrics:
                if run.config.seed in scores.setdefault(split, {}):
                    raise InputError(f"two runs of {name!r} have the seed {run.config.seed}")
                scores[split][run.config.seed] = run.metrics[key]
    whole = {split: values for split, values in scores.items() if len(values) == len(runs)}
    if not whole and primary is not None:
        raise InputError(f"not all runs of {name!r} have a score; have they completed?")
    digests = {run.data for run in runs if run.data is not None}
    if len(digests) > 1:
        listed = ", ".join(sorted(digests))
        raise InputError(f"the runs of {name!r} had different data ({listed}). Name the runs of one search.")
    return Sample(
        name=name,
        config=config,
        metric=primary,
        scores=whole,
        label=f"{model_name(config)} {placement_name(config)}",
        best={run.config.seed: run.best for run in runs if run.best is not None},
        digest=digests.pop() if digests else None,
    )

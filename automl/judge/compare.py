"""Compare trained models with the statistics of a confirmation: `automl compare`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import inf
from statistics import fmean, stdev
from typing import Any

from automl.base.errors import InputError, unknown
from automl.base.options import format_command, with_keywords_of
from automl.base.units import decimals
from automl.data.manifest import Manifest
from automl.judge.decision import Outcome, holm_factors, step_down
from automl.judge.options import CompareOptions
from automl.judge.protocol import confirmations
from automl.judge.scheduler import read_verdicts
from automl.judge.statistics import ALPHA, Difference, paired
from automl.storage.folder import find_model_search, resolve_search
from automl.task.opening import check_same_manifests, read_manifest
from search.config import TrialConfig
from search.metric import Metric, signed_unit
from search.record import Role


@dataclass(frozen=True, kw_only=True)
class VariantScores:
    """Scores of a compared model on the test split.

    Attributes:
        name: The name as it was given.
        count: The number of seeds.
        mean: The mean score.
        sd: The standard deviation of the scores, or None for one seed.
        scale: The factor that these are multiplied by for display.
        unit: The unit of a displayed score.
    """

    name: str
    count: int
    mean: float
    sd: float | None
    scale: float
    unit: str


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A variant of a confirmation.

    Attributes:
        name: The name as it was given.
        config: The configuration, apart from the seed.
        metric: The metric of the search.
        scores: The score of the test split at each seed.
        resolution: The effect of one test input, in the metric's unit, or 0 if it is not known.
        images: The manifest of the search's data.
    """

    name: str
    config: TrialConfig
    metric: Metric
    scores: Mapping[int, float]
    resolution: float
    images: Manifest

    @property
    def summary(self) -> VariantScores:
        """The mean and the spread of the scores."""
        scores = self.scores.values()
        return VariantScores(
            name=self.name,
            count=len(scores),
            mean=fmean(scores),
            sd=stdev(scores) if len(scores) > 1 else None,
            scale=self.metric.scale,
            unit=self.metric.unit,
        )


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A model compared with the first one.

    Attributes:
        name: The name as it was given.
        variant: The scores of the model.
        reference: The scores of the first model.
        outcome: `better`, `worse`, `equivalent`, `undecided` or `cannot tell`.
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
    difference: Difference
    p_holm: float
    sentence: str

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as JSON."""
        d = self.difference
        return {
            **{key: getattr(self, key) for key in ("name", "outcome", "p_holm", "sentence")},
            "difference": d.mean,
            "interval": d.bounds,
            "p": d.p,
            "seeds": d.count,
        }


@with_keywords_of(CompareOptions)
def run_compare(*searches: Any, **options: Any) -> list[Compared]:
    """Compare the second and further models with the first.

    Models are variants of confirmations, which have scores of the test split. They are compared pair by pair
    of two or more common seeds. Holm's procedure covers all comparisons of the call. It does not cover
    the choice of a finalist by the scores of its confirmation: for that, see the verdict.

    Returns:
        A comparison for each model after the first.

    Raises:
        InputError: A model does not exist, or models cannot be compared: other tasks, data or seeds.

    Example:
        >>> import automl
        >>> (compared,) = automl.run_compare(["example:baseline", "example"])
        >>> compared.difference.count >= 2
        True
    """
    asked = CompareOptions(*searches, **options)
    if not asked.searches or isinstance(asked.searches, str):
        raise InputError("name the models to compare in a list: searches, or SEARCH:VARIANT")
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
    return _compare(samples, asked.margin)


def _compare(samples: Sequence[Sample], margin: float | None) -> list[Compared]:
    first, *others = samples
    metric = first.metric
    resolution = max(sample.resolution for sample in samples)
    margin = metric.margin_over(resolution) if margin is None else margin
    digits, gap = decimals(margin), signed_unit(metric.gap_unit, metric.maximize)
    tests = [_test(first, other, margin, resolution) for other in others]
    ps = [test().p for test in tests]
    factors = holm_factors(ps)
    details = f", adjusted for {len(ps)} comparisons" if len(ps) > 1 else ""
    coarse = f", margin {margin:.3g}, the effect of one input" if 0 < margin == resolution else ""
    comparisons = []
    for i, sample in enumerate(others):
        d = tests[i](alpha=ALPHA / factors[i])
        p = min(1.0, factors[i] * d.p)
        outcome = _outcome(
            d, is_claimed=step_down(ps, lambda alpha: alpha)[i], is_coarse=0 < margin < resolution
        )
        sentence = (
            f"{sample.name} against {first.name}: {outcome}, {d.mean:+.{digits}f} {gap} "
            f"({d.in_words(digits)}, p = {p:.2g}{details}, {d.count} paired seeds, test split{coarse})"
        )
        comparisons.append(
            Compared(
                name=sample.name,
                variant=sample.summary,
                reference=first.summary,
                outcome=outcome,
                difference=d,
                p_holm=p,
                sentence=sentence,
            )
        )
    return comparisons


def _test(first: Sample, other: Sample, margin: float, resolution: float) -> partial[Difference]:
    """Return the test of two models' difference, which takes its level."""
    sign = first.metric.sign * first.metric.scale
    reference, scores = first.scores, other.scores
    both = sorted(scores.keys() & reference.keys())
    if len(both) < 2:
        raise InputError(
            f"{first.name} and {other.name} must have two or more seeds in common; they have {len(both)}. "
            f"Compare their trainings with automl referee, or confirmations with the same seeds"
        )
    gaps = [sign * (scores[seed] - reference[seed]) for seed in both]
    return partial(paired, gaps, margin=margin, resolution=resolution)


def _outcome(d: Difference, *, is_claimed: bool, is_coarse: bool) -> Outcome:
    if is_claimed:
        return "better" if d.mean > 0 else "worse"
    if is_coarse or not d.bounds or d.low == d.high:
        return "cannot tell"  # The margin is below one input, or the spread is not known.
    return "equivalent" if d.p_margin <= ALPHA else "undecided"


def _check_comparable(sample: Sample, other: Sample) -> None:
    if sample.config.task != other.config.task:
        tasks = f"{sample.name} is of task {sample.config.task}, {other.name} of {other.config.task}"
        raise InputError(f"{tasks}; their scores are not comparable")
    if sample.metric.name != other.metric.name:
        metrics = f"{sample.name} has the metric {sample.metric.name}, {other.name} has {other.metric.name}"
        raise InputError(f"{metrics}; their scores are not comparable")
    # The size of images is an option of the model. The set of images is not, wherever its folder is.
    data = [{**asdict(each.config.data), "size": None, "path": None} for each in (sample, other)]
    if data[0] != data[1]:
        raise InputError(
            f"{sample.name} and {other.name} have different data in their splits: "
            + " and ".join(json.dumps({k: v for k, v in d.items() if k != "size"}) for d in data)
        )
    check_same_manifests(sample.images, other.images, (sample.name, other.name))


def _read_sample(name: str, storage: str) -> Sample:
    search, colon, wanted = name.partition(":")
    folder, metadata = find_model_search(search, storage)
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
    text = wanted if colon else (verdict.finalist or "")
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
        scores=variant.scores,
        resolution=verdict.design.resolution,
        images=read_manifest(folder),
    )

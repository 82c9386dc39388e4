"""The verdict on the finalists of a confirmation, from the scores there are."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

import numpy as np

from automl.confirm import statistics
from automl.confirm.design import Design
from automl.confirm.scores import Scores
from automl.confirm.statistics import (
    ALPHA,
    EQUAL_TIME,
    OUTCOMES,
    Difference,
    Outcome,
    Ratio,
    least_pairs,
    paired,
    pairs_needed,
)
from automl.confirm.variants import CONTROL_ROLES, Variant
from automl.confirm.verdict import Comparison, Verdict
from search.record import Role

# Reasons for `cannot tell`, each with an explanation.
_HYPERPARAMETERS = (
    "the gain may come from the hyperparameters",
    "The plain backbone with the finalist's own hyperparameters is not shown to be worse.",
)
_LONGER = "the gain may come from longer training"
_SHORTER = "the loss may come from shorter training"
_OTHER_TIME = "a finalist may have trained for another time than the baseline"
_UNEQUAL_TIME = {"better": _LONGER, "worse": _SHORTER, "equivalent": _OTHER_TIME}


@dataclass(frozen=True, kw_only=True)
class _Look:
    """The verdict after some seeds. lead: the leading finalist. used: seeds at which all are compared.

    reason: of `cannot tell`. standing: finalists that have not dropped out. times: their time ratios.
    differences: of these from the baseline; plain: from the plain variants with their hyperparameters, None
    where that is the baseline or there is none to compare with. factors: by which Holm's procedure
    multiplies p. awaited: plain variants without which it is not known whether a finalist is better.
    """

    outcome: Outcome
    reason: str
    explanation: str
    lead: int
    standing: Sequence[Variant]
    differences: Sequence[Difference]
    plain: Sequence[Difference | None]
    factors: Sequence[float]
    awaited: Sequence[Variant]
    times: Sequence[Ratio | None]
    used: Sequence[int]
    level: float | None


def judge(design: Design, variants: Sequence[Variant], scores: Mapping[str, Scores]) -> Verdict:
    """The verdict on the finalists among `variants` against the first one, the baseline, from what there is.

    A seed counts once it has ended for the baseline and all finalists. A finalist that cannot be trained
    with one of them drops out: it cannot win, and takes nothing from the others. What comes in after a
    sequential confirmation has been decided changes nothing.

    A finalist is better when it is better than the baseline and than the plain variant with its own
    hyperparameters, both at the same level: as both have to be shown, neither needs a stricter one (R. Berger
    1982). Where the first is shown and the second variant has no scores yet, the verdict awaits them.
    """
    baseline, *others = variants
    finalists = [variant for variant in others if variant.role is Role.FINALIST]
    first = min(least_pairs(ALPHA / len(finalists)), len(design.seeds))
    looks = tuple(range(first, len(design.seeds) + 1)) if design.sequential else ()
    if len(looks) == 1:
        looks = ()  # the only look is the last one
    plain = {variant.name: variant for variant in others if variant.role is Role.PLAIN}
    seen: list[int] = []
    found: _Look | None = None
    awaited: Sequence[Variant] = ()
    decided = False
    for seed in design.seeds:
        if not all(scores[variant.name].ended(seed) for variant in (baseline, *finalists)):
            break
        seen.append(seed)
        last = len(seen) == len(design.seeds)
        if last or len(seen) in looks:
            found = _look(design, baseline, finalists, plain, scores, seen, looks)
            awaited = found.awaited if found is not None else ()
            shown = found is not None and found.outcome in ("better", "worse", "equivalent")
            decided = not awaited and (last or shown)
            if decided or awaited:
                break
    if not decided:  # an intermediate state, not an interim analysis
        found = _look(design, baseline, finalists, plain, scores, seen, ())
    warnings = [
        f"{variant.name} failed with seed {seed}: {reason}"
        for variant in variants
        for seed, reason in {**scores[variant.name].failed, **scores[variant.name].errors}.items()
    ]
    unlike = [
        seed for seed in seen if len({s.devices[seed] for s in scores.values() if seed in s.devices}) > 1
    ]
    if unlike:
        names = sorted({device for s in scores.values() for device in s.devices.values()})
        warnings.append(
            f"the variants of {len(unlike)} seeds trained on different devices ({', '.join(names)}), so "
            f"their times are not comparable; --label restricts a search to nodes of one kind"
        )
    counted = [variant.name for variant in variants if scores[variant.name].counted]
    if counted and design.equal == "time":
        warnings.append(
            f"the time ratio was partly estimated from operation counts, not measured precisely: "
            f"{', '.join(counted)}"
        )
    if found is None:
        return Verdict(design=design, complete=decided, warnings=warnings)
    least = least_pairs(ALPHA / len(finalists))
    undecided = decided and found.outcome == "undecided"
    if undecided and len(found.used) < least:
        warnings.append(
            f"{len(found.used)} seeds with {len(finalists)} finalists cannot show any difference, however "
            f"large; at least {least} are needed"
        )
    level = found.level or ALPHA
    comparisons = [
        Comparison(
            variant=variant,
            difference=d,
            plain=plain_d,
            p_holm=min(1.0, factor * d.p),
            images=_images(
                design, d, scores[variant.name], scores[baseline.name], found.used, level / factor
            ),
            time=time,
        )
        for variant, d, plain_d, factor, time in zip(
            found.standing, found.differences, found.plain, found.factors, found.times, strict=True
        )
    ]
    lead = comparisons[found.lead]
    for variant in others:
        both = [seed for seed in found.used if seed in scores[variant.name].scores]
        partly = variant.name in plain and len(both) < len(found.used)  # of those who may become the baseline
        if variant.role is not Role.FINALIST and len(both) >= 2 and not partly:
            d = _difference(design, scores, variant, baseline, both)
            comparisons.append(
                Comparison(
                    variant=variant,
                    difference=d,
                    lead=_difference(design, scores, lead.variant, variant, both),
                    images=_images(design, d, scores[variant.name], scores[baseline.name], both, ALPHA),
                    time=time_ratio(scores[variant.name], scores[baseline.name], both),
                )
            )
    needed = partial(_needed, d=lead.difference, finalists=len(finalists), looks=looks)
    return Verdict(
        design=design,
        outcome=found.outcome,
        reason=found.reason,
        explanation=found.explanation,
        complete=decided,
        lead=lead,
        comparisons=comparisons,
        used=found.used,
        level=found.level,
        needed=needed(design.margin) if undecided else None,
        needed_here=needed(abs(lead.difference.mean)) if undecided else None,
        steps=_steps(scores[lead.variant.name], scores[baseline.name], found.used),
        gate=_gate(scores[lead.variant.name], found.used),
        awaited=awaited,
        pending=[
            variant
            for variant in others
            if variant.role in CONTROL_ROLES
            and not all(scores[variant.name].ended(seed) for seed in found.used)
        ],
        warnings=warnings,
    )


def _look(
    design: Design,
    baseline: Variant,
    finalists: Sequence[Variant],
    plain: Mapping[str, Variant],
    scores: Mapping[str, Scores],
    seen: Sequence[int],
    looks: tuple[int, ...],
) -> _Look | None:
    """The verdict after the seeds `seen`. looks: the numbers of seeds at the interim analyses, if any.

    plain: the variants with the finalists' hyperparameters, but the baseline, by their names.

    None when fewer than two seeds are left to compare.
    """
    standing = [
        variant for variant in finalists if not any(seed in scores[variant.name].failed for seed in seen)
    ]
    competing = [baseline, *standing]
    used = [seed for seed in seen if all(seed in scores[variant.name].scores for variant in competing)]
    if not standing or len(used) < 2:
        return None

    def level(alpha: float) -> float:
        return statistics.nominal_levels(looks, alpha)[looks.index(len(seen))] if looks else alpha

    family = len(finalists)
    differences = [_difference(design, scores, variant, baseline, used) for variant in standing]
    times = [time_ratio(scores[variant.name], scores[baseline.name], used) for variant in standing]
    fair = [_fair(time) if design.equal == "time" else OUTCOMES for time in times]
    ahead = statistics.ahead(differences, level=level, family=family, fair=fair)
    awaited = [
        plain[variant.plain]
        for variant, is_ahead in zip(standing, ahead, strict=True)
        if is_ahead and variant.plain in plain and not _is_whole(scores[variant.plain], used)
    ]
    of_plain = [_from_plain(design, scores, variant, plain, used) for variant in standing]
    both = [
        d if other is None or d.mean <= 0 else replace(d, p=max(d.p, other.p) if other.mean > 0 else 1.0)
        for d, other in zip(differences, of_plain, strict=True)
    ]
    outcome, lead = statistics.verdict(both, level=level, family=family, fair=fair)
    reason = explanation = ""
    alone, first = statistics.verdict(differences, level=level, family=family, fair=fair)
    if outcome == "undecided" and alone == "better":
        outcome, lead, (reason, explanation) = "cannot tell", first, _HYPERPARAMETERS
    elif outcome == "cannot tell":
        unchecked, _ = statistics.verdict(both, level=level, family=family)
        reason = _UNEQUAL_TIME[unchecked]
        explanation = (
            f"Time counts as equal if its 95 % CI is within {1 - EQUAL_TIME:g} to {1 + EQUAL_TIME:g}."
        )
        if None in times:
            explanation = f"{reason[0].upper()}{reason[1:]}."
            reason = "training times were not measured"
    # What Holm's procedure makes of p, it makes of the interval: one excludes 0 where the other is small.
    factors = statistics.holm_factors([d.p for d in both], family=family)
    nominal = family * level(ALPHA / family) if looks else ALPHA
    differences = [
        _difference(design, scores, variant, baseline, used, alpha=nominal / factor)
        for variant, factor in zip(standing, factors, strict=True)
    ]
    of_plain = [
        _from_plain(design, scores, variant, plain, used, alpha=nominal / factor)
        for variant, factor in zip(standing, factors, strict=True)
    ]
    if guess := _guessing(design, [scores[variant.name] for variant in competing], used):
        outcome, reason, explanation = "cannot tell", "no variant is shown to beat guessing", guess
    elif 0 < design.margin < design.resolution and outcome in ("equivalent", "undecided"):
        outcome, reason = "cannot tell", "the margin is smaller than the effect of one test input"
        explanation = (
            f"Set a larger --margin than {design.margin:g} {design.unit}: one of the {design.inputs} test "
            f"inputs changes the score by {design.resolution:.2g} {design.unit}."
        )
    return _Look(
        outcome=outcome,
        reason=reason,
        explanation=explanation,
        lead=lead,
        standing=standing,
        differences=differences,
        plain=of_plain,
        factors=factors,
        awaited=awaited,
        times=times,
        used=used,
        # Of p as Holm adjusts it, which multiplies where the levels divide.
        level=nominal if looks else None,
    )


def _is_whole(variant: Scores, seeds: Sequence[int]) -> bool:
    """Nothing is to be awaited of it: all seeds have ended, or it cannot be trained with one of them."""
    return bool(variant.failed) or all(variant.ended(seed) for seed in seeds)


def _from_plain(
    design: Design,
    scores: Mapping[str, Scores],
    variant: Variant,
    plain: Mapping[str, Variant],
    seeds: Sequence[int],
    alpha: float = ALPHA,
) -> Difference | None:
    """Return the difference of a finalist from the plain variant with its hyperparameters.

    Returns None where that is the baseline, where it has not been trained with all seeds, and where it cannot
    be: then the finalist's gain does not come from its hyperparameters.
    """
    if (
        variant.plain not in plain
        or scores[variant.plain].failed
        or not _is_whole(scores[variant.plain], seeds)
    ):
        return None
    both = [seed for seed in seeds if seed in scores[variant.plain].scores]
    return _difference(design, scores, variant, plain[variant.plain], both, alpha) if len(both) >= 2 else None


def _steps(ours: Scores, theirs: Scores, seeds: Sequence[int]) -> tuple[float, float] | None:
    """Return the mean steps of two variants' trainings; None where they are not known."""
    steps = [
        [variant.costs[seed].steps for seed in seeds if seed in variant.costs] for variant in (ours, theirs)
    ]
    known = [[count for count in counts if count is not None] for counts in steps]
    if any(len(counts) < len(seeds) for counts in known):
        return None
    return fmean(known[0]), fmean(known[1])


def time_ratio(ours: Scores, theirs: Scores, seeds: Sequence[int]) -> Ratio | None:
    """The ratio of two variants' training times with the same seeds; None where it is not known.

    The processor's time counts where all trainings have it, which a busy machine hardly changes.
    """
    for name in ("processor_seconds", "seconds"):
        first, second = (
            [getattr(variant.costs.get(seed), name, None) or 0.0 for seed in seeds]
            for variant in (ours, theirs)
        )
        if len(seeds) >= 2 and all(seconds > 0 for seconds in first + second):
            return statistics.paired_ratio(first, second)
    return None


def _fair(time: Ratio | None) -> Collection[Outcome]:
    """What may be said of a variant, as its time was to be the baseline's."""
    if time is None:
        return ()
    fair: list[Outcome] = []
    if time.no_longer:
        fair.append("better")
    if time.low >= 1 - EQUAL_TIME:
        fair.append("worse")
    return [*fair, "equivalent"] if time.equal else fair


def _guessing(design: Design, variants: Iterable[Scores], seeds: Sequence[int]) -> str:
    """Whether all variants may be guessing, in words; empty where one is not, or there is no telling."""
    chance, sign = design.chance, 1 if design.maximize else -1
    if chance is None or any(
        statistics.above_chance(
            [sign * variant.scores[seed] for seed in seeds], sign * chance.value, chance.error
        )
        for variant in variants
    ):
        return ""
    unit = "" if design.unit == design.metric else f" {design.unit}"
    value = f"{chance.value:.4f}{unit}" if design.scale == 1 else f"{100 * chance.value:.1f} %"
    return f"The {design.metric} of guessing is {value}."


def _images(
    design: Design, d: Difference, ours: Scores, theirs: Scores, seeds: Sequence[int], alpha: float
) -> tuple[float, float] | None:
    """The interval of a difference over seeds and test inputs; None without the answers to each image."""
    if not d.bounded:
        return None
    values = [[variant.values.get(seed) for seed in seeds] for variant in (ours, theirs)]
    if any(of is None or len(of) != design.inputs for variant in values for of in variant):
        return None
    first, second = (np.array(variant, float) for variant in values)
    step = None if design.chance is None else design.chance.step
    reach = design.scale * statistics.reach_over_inputs(first - second, alpha, step=step)
    return min(d.low, d.mean - reach), max(d.high, d.mean + reach)


def _difference(
    design: Design,
    scores: Mapping[str, Scores],
    variant: Variant,
    other: Variant,
    seeds: Sequence[int],
    alpha: float = ALPHA,
) -> Difference:
    sign = design.scale if design.maximize else -design.scale
    ours, theirs = scores[variant.name].scores, scores[other.name].scores
    return paired(
        [sign * (ours[s] - theirs[s]) for s in seeds],
        margin=design.margin,
        resolution=design.resolution,
        alpha=alpha,
    )


def _gate(variant: Scores, seeds: Sequence[int]) -> float | None:
    """Return the largest |gate| that a variant has learned; None where that is not known of all seeds."""
    gates = [variant.gates[seed] for seed in seeds if seed in variant.gates]
    return max(gates) if len(gates) == len(seeds) else None


def _needed(size: float, d: Difference, finalists: int, looks: tuple[int, ...]) -> int | None:
    """Return the seeds that show a difference of `size` with 80 % power, at the level of the last look."""
    if size <= 0 or d.sd is None:
        return None
    alpha = ALPHA / finalists
    if looks:
        alpha = statistics.nominal_levels(looks, alpha)[-1]
    return pairs_needed(size, d.sd, alpha)

"""Judge the finalists of a confirmation from the scores so far."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

import numpy as np

from automl.base.units import pluralize
from automl.confirm import decision, statistics
from automl.confirm.decision import OUTCOMES, Outcome, pairs_needed
from automl.confirm.design import Design
from automl.confirm.scores import Scores
from automl.confirm.statistics import ALPHA, EQUAL_TIME, Difference, Ratio, least_pairs, paired
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
_OTHER_TIME = "finalists and baseline may have trained for different times"
CONSTANT = 5  # number of equal scores that show that a command ignores its seed
_UNEQUAL_TIME = {"better": _LONGER, "worse": _SHORTER, "equivalent": _OTHER_TIME}


@dataclass(frozen=True, kw_only=True)
class _Analysis:
    """Result of an analysis after some seeds.

    Attributes:
        outcome: What the scores show.
        reason: The reason of `cannot tell`, as part of the headline.
        explanation: The reason in a full sentence.
        lead: The index of the leading finalist in `standing`.
        standing: The finalists that have not dropped out.
        differences: The difference of each from the baseline.
        plain: The difference of each from the plain variant with its hyperparameters. None if that is the
            baseline or has no scores.
        factors: The factors by which Holm's procedure multiplies p.
        awaited: The plain variants whose scores are needed to call a finalist better.
        times: The time ratio of each finalist.
        used: The seeds at which all are compared.
        level: The significance level of an interim analysis, or None without these.
        is_constant: True if a command gave the same score with so many seeds that it must ignore them.
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
    is_constant: bool = False


def judge(design: Design, variants: Sequence[Variant], scores: Mapping[str, Scores]) -> Verdict:
    """Return the verdict on the finalists against the baseline, the first of `variants`.

    A seed counts once it has ended for the baseline and all finalists. A finalist that cannot be trained with
    a seed drops out. It cannot win, and does not change the results of the others. Scores that arrive after a
    sequential confirmation has stopped change nothing.

    A command may fail because of its seed, so a seed without a score leaves a verdict on commands open.
    Otherwise a command could end early wherever its score is low.

    A finalist is better if it beats the baseline and the plain variant with its own hyperparameters, both at
    the same level. Because both have to be shown, neither needs a stricter level (R. Berger 1982). If only
    the first is shown and the plain variant has no scores yet, the verdict waits for these.
    """
    baseline, *others = variants
    finalists = [variant for variant in others if variant.role is Role.FINALIST]
    first = min(least_pairs(ALPHA / len(finalists)), len(design.seeds))
    analyses = tuple(range(first, len(design.seeds) + 1)) if design.sequential else ()
    if len(analyses) == 1:
        analyses = ()  # The only analysis is the final one.
    plain = {variant.name: variant for variant in others if variant.role is Role.PLAIN}
    seen: list[int] = []
    analysis: _Analysis | None = None
    awaited: Sequence[Variant] = ()
    is_final = False
    for seed in design.seeds:
        competing = [scores[variant.name] for variant in (baseline, *finalists)]
        if not all(s.ended(seed) and not (design.commands and seed in s.errors) for s in competing):
            break
        seen.append(seed)
        last = len(seen) == len(design.seeds)
        if last or len(seen) in analyses:
            analysis = _analyse(design, baseline, finalists, plain, scores, seen, analyses)
            awaited = analysis.awaited if analysis is not None else ()
            shown = analysis is not None and (
                analysis.outcome in ("better", "worse", "equivalent") or analysis.is_constant
            )
            is_final = not awaited and (last or shown)
            if is_final or awaited:
                break
    if not is_final:  # This is an intermediate state, not an interim analysis.
        analysis = _analyse(design, baseline, finalists, plain, scores, seen, ())
    warnings = [
        f"{variant.name} failed with seed {seed}: {reason}"
        for variant in variants
        for seed, reason in {**scores[variant.name].failed, **scores[variant.name].errors}.items()
    ]
    mixed = [
        seed for seed in seen if len({s.devices[seed] for s in scores.values() if seed in s.devices}) > 1
    ]
    if mixed:
        names = sorted({device for s in scores.values() for device in s.devices.values()})
        warnings.append(
            f"Restrict a search to nodes of one kind with --label: the variants of "
            f"{pluralize(len(mixed), 'seed')} trained on different devices ({', '.join(names)}), so their "
            f"times are not comparable."
        )
    estimated = [variant.name for variant in variants if scores[variant.name].estimated]
    if estimated and design.equal == "time":
        warnings.append(
            f"Do not rely on equal time for {', '.join(estimated)}: the time ratio was partly estimated from "
            f"operation counts."
        )
    if design.commands and analysis is not None and not analysis.is_constant:
        warnings += _equal_scores(scores, [baseline, *finalists], analysis.used)
    if analysis is None:
        return Verdict(design=design, complete=is_final, warnings=warnings)
    least = least_pairs(ALPHA / len(finalists))
    is_undecided = is_final and analysis.outcome == "undecided"
    if is_undecided and len(analysis.used) < least:
        warnings.append(
            f"Run at least {least} seeds: {len(analysis.used)} seeds cannot show any difference with "
            f"{pluralize(len(finalists), 'finalist')}."
        )
    level = analysis.level or ALPHA
    comparisons = [
        Comparison(
            variant=variant,
            difference=d,
            plain=plain_d,
            p_holm=min(1.0, factor * d.p),
            images=_images(
                design, d, scores[variant.name], scores[baseline.name], analysis.used, level / factor
            ),
            time=time,
        )
        for variant, d, plain_d, factor, time in zip(
            analysis.standing,
            analysis.differences,
            analysis.plain,
            analysis.factors,
            analysis.times,
            strict=True,
        )
    ]
    lead = comparisons[analysis.lead]
    for variant in others:
        both = [seed for seed in analysis.used if seed in scores[variant.name].scores]
        # A candidate for the baseline may have scores at the first seeds only.
        partial_scores = variant.name in plain and len(both) < len(analysis.used)
        if variant.role is not Role.FINALIST and len(both) >= 2 and not partial_scores:
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
    needed = partial(_needed, d=lead.difference, finalists=len(finalists), analyses=analyses)
    return Verdict(
        design=design,
        outcome=analysis.outcome,
        reason=analysis.reason,
        explanation=analysis.explanation,
        complete=is_final,
        lead=lead,
        comparisons=comparisons,
        used=analysis.used,
        level=analysis.level,
        needed=needed(design.margin) if is_undecided else None,
        needed_here=needed(abs(lead.difference.mean)) if is_undecided else None,
        steps=_steps(scores[lead.variant.name], scores[baseline.name], analysis.used),
        gate=_gate(scores[lead.variant.name], analysis.used),
        awaited=awaited,
        is_constant=analysis.is_constant,
        pending=[
            variant
            for variant in others
            if variant.role in CONTROL_ROLES
            and not all(scores[variant.name].ended(seed) for seed in analysis.used)
        ],
        warnings=warnings,
    )


def _analyse(
    design: Design,
    baseline: Variant,
    finalists: Sequence[Variant],
    plain: Mapping[str, Variant],
    scores: Mapping[str, Scores],
    seen: Sequence[int],
    analyses: tuple[int, ...],
) -> _Analysis | None:
    """Return the result after the seeds `seen`, or None if fewer than two seeds can be compared.

    Args:
        design: The design of the confirmation.
        baseline: The tuned baseline.
        finalists: All finalists.
        plain: The plain variants with the finalists' hyperparameters by name, without the baseline.
        scores: The scores of each variant.
        seen: The seeds that have ended.
        analyses: The numbers of seeds at which interim analyses are made, or empty without these.
    """
    standing = [
        variant for variant in finalists if not any(seed in scores[variant.name].failed for seed in seen)
    ]
    competing = [baseline, *standing]
    used = [seed for seed in seen if all(seed in scores[variant.name].scores for variant in competing)]
    if not standing or len(used) < 2:
        return None

    def level(alpha: float) -> float:
        return decision.nominal_levels(analyses, alpha)[analyses.index(len(seen))] if analyses else alpha

    family = len(finalists)
    differences = [_difference(design, scores, variant, baseline, used) for variant in standing]
    times = [time_ratio(scores[variant.name], scores[baseline.name], used) for variant in standing]
    fair = [_fair_outcomes(time) if design.equal == "time" else OUTCOMES for time in times]
    ahead = decision.select_ahead(differences, level=level, family=family, fair=fair)
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
    outcome, lead = decision.decide(both, level=level, family=family, fair=fair)
    reason = explanation = ""
    alone, first = decision.decide(differences, level=level, family=family, fair=fair)
    if outcome == "undecided" and alone == "better":
        outcome, lead, (reason, explanation) = "cannot tell", first, _HYPERPARAMETERS
    elif outcome == "cannot tell":
        unchecked, _ = decision.decide(both, level=level, family=family)
        reason = _UNEQUAL_TIME[unchecked]
        explanation = (
            f"Time counts as equal if its 95 % CI is within {1 - EQUAL_TIME:g} to {1 + EQUAL_TIME:g}."
        )
        if None in times:
            explanation = f"{reason[0].upper()}{reason[1:]}."
            reason = "training times were not measured"
    # Holm's procedure changes p and the interval alike, so the interval excludes 0 if p is small enough.
    factors = decision.holm_factors([d.p for d in both], family=family)
    nominal = family * level(ALPHA / family) if analyses else ALPHA
    differences = [
        _difference(design, scores, variant, baseline, used, alpha=nominal / factor)
        for variant, factor in zip(standing, factors, strict=True)
    ]
    of_plain = [
        _from_plain(design, scores, variant, plain, used, alpha=nominal / factor)
        for variant, factor in zip(standing, factors, strict=True)
    ]
    constant = _constant(scores, competing, used) if design.commands else ""
    if len(used) >= CONSTANT and constant:
        outcome, reason = "cannot tell", f"{constant} gives the same score with every seed"
        explanation = (
            f"The {len(used)} scores of {constant} are equal in every digit. Either it ignores its seed, or "
            f"the metric is too coarse. Use {{seed}} in the training script for the initial weights and the "
            f"order of the data, or choose another metric."
        )
    elif guess := _guessing(design, [scores[variant.name] for variant in competing], used):
        outcome, reason, explanation = "cannot tell", "no variant is shown to beat guessing", guess
    elif 0 < design.margin < design.resolution and outcome in ("equivalent", "undecided"):
        outcome, reason = "cannot tell", "the margin is smaller than the effect of one test input"
        explanation = (
            f"Set a larger --margin than {design.margin:g} {design.unit}: one of the {design.inputs} test "
            f"inputs changes the score by {design.resolution:.2g} {design.unit}."
        )
    return _Analysis(
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
        # The level of the adjusted p: Holm's factors multiply p instead of dividing the level.
        level=nominal if analyses else None,
        is_constant=len(used) >= CONSTANT and bool(constant),
    )


def _constant(scores: Mapping[str, Scores], variants: Sequence[Variant], seeds: Sequence[int]) -> str:
    """Return the name of the first variant with equal scores at all seeds, or an empty string."""
    names = [variant.name for variant in variants]
    return next((n for n in names if len({scores[n].scores[seed] for seed in seeds}) == 1), "")


def _equal_scores(
    scores: Mapping[str, Scores], variants: Sequence[Variant], seeds: Sequence[int]
) -> Iterator[str]:
    """Yield warnings of scores that are equal at several seeds, or to those of the baseline."""
    if name := _constant(scores, variants, seeds):
        yield f"Check that {name} uses its seed: its {len(seeds)} scores so far are equal in every digit."
    rows = {variant.name: [scores[variant.name].scores.get(seed) for seed in seeds] for variant in variants}
    baseline, *others = rows
    for name in others:
        if rows[name] == rows[baseline]:
            yield f"Check that {name} differs from {baseline}: their scores are equal at every seed."


def _is_whole(variant: Scores, seeds: Sequence[int]) -> bool:
    """Return whether all seeds of a variant have ended, or one of them cannot be trained."""
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

    Returns None if that is the baseline, if it is not trained with all seeds, or if it cannot be trained. A
    variant that cannot be trained shows that the gain does not come from its hyperparameters.
    """
    if (
        variant.plain not in plain
        or scores[variant.plain].failed
        or not _is_whole(scores[variant.plain], seeds)
    ):
        return None
    both = [seed for seed in seeds if seed in scores[variant.plain].scores]
    return _difference(design, scores, variant, plain[variant.plain], both, alpha) if len(both) >= 2 else None


def _steps(finalist: Scores, baseline: Scores, seeds: Sequence[int]) -> tuple[float, float] | None:
    """Return the mean steps of two variants' trainings, or None if they are not known."""
    steps = [
        [variant.costs[seed].steps for seed in seeds if seed in variant.costs]
        for variant in (finalist, baseline)
    ]
    known = [[count for count in counts if count is not None] for counts in steps]
    if any(len(counts) < len(seeds) for counts in known):
        return None
    return fmean(known[0]), fmean(known[1])


def time_ratio(variant: Scores, baseline: Scores, seeds: Sequence[int]) -> Ratio | None:
    """Return the ratio of two variants' training times at the same seeds, or None if it is not known.

    Processor time is used if all trainings have it, because other processes on the machine hardly change it.
    """
    for name in ("processor_seconds", "seconds"):
        first, second = (
            [getattr(trained.costs.get(seed), name, None) or 0.0 for seed in seeds]
            for trained in (variant, baseline)
        )
        if len(seeds) >= 2 and all(seconds > 0 for seconds in first + second):
            return statistics.paired_ratio(first, second)
    return None


def _fair_outcomes(time: Ratio | None) -> Collection[Outcome]:
    """Return the outcomes that a measured time ratio allows."""
    if time is None:
        return ()
    allowed: list[Outcome] = []
    if time.no_longer:
        allowed.append("better")
    if time.low >= 1 - EQUAL_TIME:
        allowed.append("worse")
    return [*allowed, "equivalent"] if time.equal else allowed


def _guessing(design: Design, variants: Iterable[Scores], seeds: Sequence[int]) -> str:
    """Return a sentence with the score of guessing if all variants may be guessing, else an empty string."""
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
    design: Design, d: Difference, variant: Scores, baseline: Scores, seeds: Sequence[int], alpha: float
) -> tuple[float, float] | None:
    """Return the interval over seeds and test inputs, or None without answers to each input."""
    if not d.bounded:
        return None
    values = [[trained.values.get(seed) for seed in seeds] for trained in (variant, baseline)]
    sizes = {None if answers is None else len(answers) for rows in values for answers in rows}
    if len(sizes) != 1 or None in sizes or (design.inputs and sizes != {design.inputs}):
        return None
    first, second = (np.array(rows, float) for rows in values)
    step = (design.chance.step or None) if design.chance is not None else None
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
    values, other_values = scores[variant.name].scores, scores[other.name].scores
    return paired(
        [sign * (values[seed] - other_values[seed]) for seed in seeds],
        margin=design.margin,
        resolution=design.resolution,
        alpha=alpha,
    )


def _gate(variant: Scores, seeds: Sequence[int]) -> float | None:
    """Return the largest absolute gate that a variant has learned, or None if not all seeds have it."""
    gates = [variant.gates[seed] for seed in seeds if seed in variant.gates]
    return max(gates) if len(gates) == len(seeds) else None


def _needed(size: float, d: Difference, finalists: int, analyses: tuple[int, ...]) -> int | None:
    """Return the seeds that detect `size` with 80 % power, at the level of the last analysis."""
    if size <= 0 or d.sd is None:
        return None
    alpha = ALPHA / finalists
    if analyses:
        alpha = decision.nominal_levels(analyses, alpha)[-1]
    return pairs_needed(size, d.sd, alpha)

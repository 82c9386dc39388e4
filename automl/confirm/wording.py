"""The text of a verdict: a headline, a line of figures, and remarks."""

import math
from typing import TYPE_CHECKING, Any

from automl.base.units import pluralize
from automl.confirm.statistics import EQUAL_TIME, Ratio
from search.record import Role

if TYPE_CHECKING:
    from automl.confirm.design import Design
    from automl.confirm.ledger import Decision
    from automl.confirm.statistics import Difference
    from automl.confirm.verdict import Comparison, Verdict

CLOSED_GATE = 0.05  # an absolute gate below which a module hardly changes its input
FEW_SEEDS = 10  # below this number, the figures say "only"
INCOMPLETE = "A seed counts once the baseline and all {finalist}s have trained with it."

# The conclusion if the winner is not shown to be better than a control.
_CONCLUSIONS = {
    Role.CONTROL: "the gain is not shown to come from attention",
    Role.RANDOM: "its type and site are not shown to matter",
}


def headline(verdict: "Verdict") -> str:
    """Return the verdict in at most 15 words."""
    if verdict.noise is not None:
        return verdict.words
    if verdict.outcome is None or verdict.lead is None:
        return "No verdict: fewer than two seeds are complete"
    if not verdict.complete:
        count = verdict.lead.difference.count
        return f"No verdict yet: {count} of {len(verdict.design.seeds)} seeds are complete"
    return f"Cannot tell: {verdict.words}" if verdict.outcome == "cannot tell" else verdict.words


def fields(design: "Design", lead: "Comparison", constant: str) -> dict[str, Any]:
    """Return the values of the fields in the words of a rule. `constant` is as in `Evidence`."""
    guess = ""
    if design.chance is not None:
        unit = "" if design.unit == design.metric.name else f" {design.unit}"
        value = design.chance.value
        guess = f"{value:.4f}{unit}" if design.metric.scale == 1 else f"{100 * value:.1f} %"
    return {
        "winner": lead.variant.title,
        "finalist": design.kind.finalist,
        "baseline": design.kind.baseline,
        "difference": f"{abs(lead.difference.mean):.{design.decimals}f} {design.unit}",
        "count": lead.difference.count,
        "constant": constant,
        "metric": design.metric.name,
        "guess": guess,
        "margin": f"{design.margin:g} {design.unit}",
        "inputs": design.inputs,
        "resolution": f"{design.resolution:.2g} {design.unit}",
    }


def figures(verdict: "Verdict") -> str:
    """Return the difference, its interval, p, the seeds and the time, in short sentences."""
    if verdict.noise is not None:
        return verdict.explanation
    if verdict.outcome is None or verdict.lead is None:
        return INCOMPLETE.format(finalist=verdict.design.kind.finalist)
    design, lead = verdict.design, verdict.lead
    d, decimals = lead.difference, design.decimals
    sentences = [
        f"{lead.variant.name}: {d.mean:+.{decimals}f} {design.signed}, {confidence_interval(d, decimals)}"
    ]
    if images := _images(lead, decimals):
        sentences.append(images.capitalize())
    paired = f"{d.count} paired {'shared partial trainings' if design.shared_trainings else 'seeds'}"
    sentences += [
        _probability(verdict, lead) if verdict.decision is None else _evidence(verdict.decision),
        f"Only {paired}" if d.count < FEW_SEEDS else paired,
        _time(lead.time, design.equal),
    ]
    if verdict.steps is not None and round(verdict.steps[0]) != round(verdict.steps[1]):
        sentences.append(f"{verdict.steps[0]:.0f} steps against {verdict.steps[1]:.0f}")
    if verdict.failed_attempts:
        failed = ", ".join(f"{count} of {name}" for name, count in verdict.failed_attempts.items())
        sentences.append(f"Failed attempts: {failed}")
    return f"{'' if verdict.complete else 'So far '}{'. '.join(sentences)}."


def confidence_interval(d: "Difference", decimals: int) -> str:
    """Return the interval in words, also if there are too few pairs for one."""
    if not d.bounded:
        return f"no 95 % CI with {pluralize(d.count, 'seeds')}"
    return f"95 % CI {d.low:.{decimals}f} to {d.high:.{decimals}f}"


def remarks(verdict: "Verdict") -> list[str]:
    """Return lines with reasons, advice and the results of the other variants."""
    if verdict.lead is None or verdict.outcome is None:
        return []
    if verdict.decision is not None:
        return verdict.decision.lines()
    design, lines = verdict.design, []
    if verdict.complete:
        if verdict.explanation:
            lines.append(verdict.explanation)
        if 0 < design.margin == design.resolution:
            lines.append(
                f"The margin is {design.margin:.3g} {design.unit}, the effect of one of the {design.inputs} "
                f"test inputs."
            )
        for find_remarks in (_cause, _gain, _against_plain, _advice):
            lines += find_remarks(verdict, verdict.lead)
    return [*lines, *_controls(verdict, verdict.lead)]


def against_baseline(comparison: "Comparison", design: "Design") -> str:
    """Return a variant's difference from the baseline in words."""
    d, time, decimals = comparison.difference, comparison.time, design.decimals
    signed = design.signed if design.metric.maximize else f"{design.signed},"
    images = _images(comparison, decimals)
    also = f" ({images})" if images else ""
    spent = "time not measured" if time is None else f"{time.mean:.2f} times its training time"
    return (
        f"{comparison.variant.name}: {d.mean:+.{decimals}f} {signed} vs the baseline, "
        f"{confidence_interval(d, decimals)}{also}, {spent}"
    )


def _images(comparison: "Comparison", decimals: int) -> str:
    """Return the interval over seeds and test examples, or nothing if it reads as that over seeds."""
    seeds = confidence_interval(comparison.difference, decimals)
    if comparison.images is None:
        return ""
    low, high = comparison.images
    interval = f"{low:.{decimals}f} to {high:.{decimals}f}"
    return "" if interval in seeds else f"over seeds and test examples {interval}"


def _probability(verdict: "Verdict", lead: "Comparison") -> str:
    """Return p of the leading finalist, for the same level as its interval."""
    text = f"p = {lead.p_holm:.2g}"
    if verdict.level is not None:
        text += f" at level {verdict.level:.2g} of this interim analysis"
    finalists = sum(comparison.p_holm is not None for comparison in verdict.comparisons)
    return f"{text}, adjusted for {finalists} {verdict.design.kind.finalist}s" if finalists > 1 else text


def _evidence(decision: "Decision") -> str:
    """Return the e-value of a test in a ledger, beside the one at which the change is accepted."""
    if decision.level is None or decision.e_value is None:
        return "No evidence, as the runs of a screen are none"
    return f"E = {decision.e_value:.3g}; accepted from {1 / decision.level:.3g} on"


def _time(time: Ratio | None, equal: str) -> str:
    """Return the training time as measured. Time counts as equal only if its interval shows that."""
    if equal != "time":
        measured = (
            "time not measured" if time is None else f"{time.mean:.2f} times the baseline's training time"
        )
        return f"{'Equal epochs' if equal == 'epochs' else 'Time not compared'}, {measured}"
    if time is None:
        return "Time not measured"
    if time.equal:
        return "Equal time"
    return f"{time.mean:.2f} times the baseline's training time (95 % CI {time.low:.2f} to {time.high:.2f})"


def _cause(verdict: "Verdict", lead: "Comparison") -> list[str]:
    """Return the cause of a loss if the finalist made fewer steps than the baseline."""
    if verdict.steps is None or lead.difference.mean >= 0:
        return []
    steps, baseline_steps = verdict.steps
    if verdict.design.equal != "time" or steps > (1 - EQUAL_TIME) * baseline_steps:
        return []
    if verdict.gate is not None and verdict.gate < CLOSED_GATE:
        return [
            f"The gates stayed below {_round_up(verdict.gate)}, so the model is close to the plain backbone.",
            "The modules cost time, so there were fewer steps.",
        ]
    return ["A step of the finalist takes longer, so there were fewer steps."]


def _round_up(gate: float) -> str:
    """Return the least number of two digits that is not below `gate`."""
    if gate <= 0:
        return "0.001"
    step = 10.0 ** (math.floor(math.log10(gate)) - 1)
    return f"{math.ceil(gate / step * (1 + 1e-9)) * step:.2g}"


def _gain(verdict: "Verdict", lead: "Comparison") -> list[str]:
    """Return the limits of a gain: a small one, and one that holds only for this test split."""
    if verdict.winner is None:
        return []
    design, images, lines = verdict.design, lead.images, []
    if lead.difference.mean < design.margin:
        lines.append(f"The gain is below the margin of {design.margin:g} {design.unit}.")
    if images is not None and images[0] <= 0:
        lines.append(
            f"Test on more inputs before you generalize: the interval over seeds and "
            f"{f'these {design.inputs}' if design.inputs else 'the'} test examples contains 0."
        )
    return lines


def _against_plain(verdict: "Verdict", lead: "Comparison") -> list[str]:
    """Return the leading finalist's difference from the plain backbone with its own hyperparameters."""
    if verdict.final not in ("better", "cannot tell") or lead.plain is None:
        return []
    d, design = lead.plain, verdict.design
    return [
        f"Against the plain backbone with its own hyperparameters ({lead.variant.plain}): "
        f"{d.mean:+.{design.decimals}f} {design.signed} ({confidence_interval(d, design.decimals)})."
    ]


def _advice(verdict: "Verdict", lead: "Comparison") -> list[str]:
    """Return the number of seeds that would detect the margin, and a difference as large as this one."""
    if verdict.final != "undecided":
        return []
    design = verdict.design
    d, margin, lines = lead.difference, f"{design.margin:g} {design.unit}", []
    if abs(d.mean) > design.margin and verdict.needed_here is not None:
        seen = f"{abs(d.mean):.{design.decimals}f} {design.unit}"
        lines.append(f"To detect {seen}, as seen here, run {verdict.needed_here} fresh seeds (80 % power).")
    if verdict.needed is None:  # such as without a margin
        return lines
    if not lines and verdict.needed <= d.count:
        return [f"These seeds detect {margin} with 80 % power."]
    return [*lines, f"To detect {margin}, run {verdict.needed} fresh seeds (80 % power)."]


def _controls(verdict: "Verdict", lead: "Comparison") -> list[str]:
    """Return what the other variants show about the leading finalist, and controls that stand out."""
    signed, decimals, lines = verdict.design.signed, verdict.design.decimals, []
    finalists = [c for c in verdict.comparisons if c.variant.role is Role.FINALIST]
    none_better = not any(comparison.difference.low > 0 for comparison in finalists)
    pending = " and ".join(variant.name for variant in verdict.pending)
    if pending and verdict.winner is not None:
        lines.append(f"Train {pending} to learn the cause of the gain.")
    elif pending and verdict.complete:
        lines.append("Controls were not trained, as no gain is shown. `confirm --controls` trains them.")
    for comparison in verdict.comparisons:
        d = comparison.lead
        if d is None or comparison.variant.role is Role.PLAIN:  # see _against_plain
            continue
        text = f"{lead.variant.name} against {comparison.variant.name}: {d.mean:+.{decimals}f} "
        text += f"{signed} ({confidence_interval(d, decimals)})"
        # Before all seeds are trained, each further seed would be another interim analysis.
        whole = comparison.variant not in verdict.pending
        if whole and verdict.winner is not None and d.low <= 0 and comparison.variant.role in _CONCLUSIONS:
            text += f", so {_CONCLUSIONS[comparison.variant.role]}"
        lines.append(f"{text}.")
        # It stands out if its interval is above 0, in no more time.
        fair = verdict.design.equal != "time" or (comparison.time is not None and comparison.time.no_longer)
        stands_out = comparison.variant.role in _CONCLUSIONS and comparison.difference.low > 0 and fair
        if whole and verdict.complete and none_better and stands_out:
            lines.append(
                f"Confirm {comparison.variant.name} with other seeds: it was better than the baseline, but "
                f"this confirmation does not test it."
            )
    return lines

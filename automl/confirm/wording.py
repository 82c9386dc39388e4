"""The text of a verdict: a headline, a line on how sure it is, one on what it costs, advice, and remarks."""

import math
from typing import TYPE_CHECKING, Any

from automl.base.units import format_duration, pluralize
from automl.confirm.statistics import NO_LONGER, Ratio
from search.record import Role

if TYPE_CHECKING:
    from automl.confirm.design import Design
    from automl.confirm.ledger import Decision
    from automl.confirm.rules import Evidence
    from automl.confirm.statistics import Difference
    from automl.confirm.verdict import Comparison, Verdict

CLOSED_GATE = 0.05  # an absolute gate below which a module hardly changes its input
MOST_SEEDS = 100  # the largest number of seeds that a text recommends
INCOMPLETE = "A seed counts once the baseline and all {finalist}s have trained with it."

# The conclusion if the winner is not shown to be better than a control.
_CONCLUSIONS = {
    Role.CONTROL: "the gain is not shown to come from attention",
    Role.RANDOM: "its type and site are not shown to matter",
}


def headline(verdict: "Verdict") -> str:
    """Return what was shown: the outcome, the difference with its interval, and of what."""
    if verdict.noise is not None:
        return verdict.words
    if verdict.outcome is None or verdict.lead is None:
        return "No verdict: fewer than two seeds are complete"
    if not verdict.complete:
        count = verdict.lead.difference.count
        return f"No verdict yet: {count} of {len(verdict.design.seeds)} seeds are complete"
    return f"Cannot tell: {verdict.words}" if verdict.outcome == "cannot tell" else verdict.words


def fields(design: "Design", lead: "Comparison", evidence: "Evidence") -> dict[str, Any]:
    """Return the values of the fields in the words of a rule."""
    guess = ""
    if design.chance is not None:
        unit = "" if design.unit == design.metric.name else f" {design.unit}"
        value = design.chance.value
        guess = f"{value:.4f}{unit}" if design.metric.scale == 1 else f"{100 * value:.1f} %"
    d, time = lead.difference, lead.time
    less = time is not None and design.equal == "time" and time.high < 1 / NO_LONGER
    return {
        "winner": lead.variant.title,
        "finalist": design.kind.finalist,
        "baseline": design.kind.baseline,
        "difference": _size(d, design),
        "signed": f"{d.mean:+.{design.decimals}f} {design.signed}{_ends(d, design.decimals)}",
        "seeds": _seeds(d),
        "less_time": f", in {100 * (1 - time.mean):.0f} % less time" if less and time is not None else "",
        "equal": _equal(evidence, lead),
        "count": d.count,
        "constant": evidence.constant,
        "metric": design.metric.name,
        "guess": guess,
        "margin": f"{design.margin:g} {design.unit}",
        "inputs": design.inputs,
        "resolution": f"{design.resolution:.2g} {design.unit}",
    }


def _size(d: "Difference", design: "Design") -> str:
    """Return a difference without its sign, with its interval."""
    low, high = sorted((abs(d.low), abs(d.high))) if d.low * d.high > 0 else (d.low, d.high)
    ends = f" ({low:.{design.decimals}f} to {high:.{design.decimals}f})" if d.bounded else ""
    return f"{abs(d.mean):.{design.decimals}f} {design.unit}{ends}"


def _ends(d: "Difference", decimals: int) -> str:
    return f" ({d.low:.{decimals}f} to {d.high:.{decimals}f})" if d.bounded else ""


def _seeds(d: "Difference") -> str:
    """Return at how many seeds the sign is that of the mean."""
    word = "ahead" if d.mean > 0 else "behind"
    same = d.ahead if d.mean > 0 else d.behind
    return f"{word} on all {d.count} seeds" if same == d.count else f"{word} on {same} of {d.count} seeds"


def _equal(evidence: "Evidence", lead: "Comparison") -> str:
    """Return the opponent that the leading finalist is not shown to beat, in words."""
    other, time = evidence.equal, lead.time
    if other is None:
        return ""
    if other.difference is None and time is not None:
        return f"takes {time.low:.2f} to {time.high:.2f} times as long"
    return f"{other.name} does as well"


def figures(verdict: "Verdict") -> str:
    """Return how sure the verdict is: the other opponents, p, and the interval over test examples."""
    if verdict.noise is not None:
        return verdict.explanation
    if verdict.outcome is None or verdict.lead is None:
        return INCOMPLETE.format(finalist=verdict.design.kind.finalist)
    design, lead, sentences = verdict.design, verdict.lead, []
    decimals, d = design.decimals, lead.difference
    if not verdict.complete:
        sentences.append(f"So far {d.mean:+.{decimals}f} {design.signed}, {confidence_interval(d, decimals)}")
    if verdict.outcome in ("better", "undecided") and verdict.complete:
        beaten = ((o.name, o.difference) for o in lead.opponents if o.difference is not None)
        others = [f"{name} {o.mean:+.{decimals}f}{_ends(o, decimals)}" for name, o in beaten]
        if others:
            sentences.append(f"Against {', against '.join(others)}")
    if images := _images(lead, decimals):
        sentences.append(images[0].upper() + images[1:])
    sentences.append(_probability(verdict, lead) if verdict.decision is None else _evidence(verdict.decision))
    if verdict.failed_attempts:
        failed = ", ".join(f"{count} of {name}" for name, count in verdict.failed_attempts.items())
        sentences.append(f"Failed attempts: {failed}")
    return f"{'. '.join(sentences)}."


def cost(verdict: "Verdict") -> str:
    """Return what the leading finalist costs: its time, its steps, and when it reaches the baseline."""
    if verdict.lead is None or verdict.outcome is None or verdict.noise is not None:
        return ""
    sentences = [_time(verdict.lead.time, verdict.design.equal)]
    if verdict.reached is not None:
        sentences.append(f"reaches the baseline's score in {100 * verdict.reached.time:.0f} % of it")
    if verdict.steps is not None and round(verdict.steps[0]) != round(verdict.steps[1]):
        sentences.append(f"{verdict.steps[0]:.0f} steps against {verdict.steps[1]:.0f}")
    return f"{', '.join(sentences)}."


def confidence_interval(d: "Difference", decimals: int) -> str:
    """Return the interval in words, also if there are too few pairs for one."""
    if not d.bounded:
        return f"no 95 % CI with {pluralize(d.count, 'seeds')}"
    return f"95 % CI {d.low:.{decimals}f} to {d.high:.{decimals}f}"


def advice(verdict: "Verdict") -> str:
    """Return what to do, in a sentence, or nothing before the verdict is final."""
    if verdict.final is None or verdict.lead is None or verdict.decision is not None:
        return ""
    kind = verdict.design.kind
    if verdict.final == "better":
        return "Use it" if kind.opaque else "Use it: automl export --best"
    if verdict.final == "undecided":
        return _settle(verdict, verdict.lead)
    if verdict.final == "cannot tell":
        return ""
    return "Keep the baseline" if kind.opaque else "Use the baseline: automl export --baseline"


def _settle(verdict: "Verdict", lead: "Comparison") -> str:
    """Return the seeds that settle an open verdict and their time, or what can be shown at all."""
    design, used = verdict.design, len(verdict.used)
    seeds = verdict.needed_here if abs(lead.difference.mean) > design.margin else verdict.needed
    if seeds is not None and max(seeds, used + 1) <= MOST_SEEDS:
        seeds = max(seeds, used + 1)
        time = "" if verdict.seconds is None else f", {format_duration(seeds * verdict.seconds)} of training"
        return f"To settle it with 80 % power{time}: automl confirm --again --seeds {seeds}"
    if verdict.shown is None:
        return ""
    return (
        f"{MOST_SEEDS} seeds would show a difference of {verdict.shown:.{design.decimals}f} {design.unit} "
        f"with 80 % power"
    )


def remarks(verdict: "Verdict") -> list[str]:
    """Return lines with reasons and the conclusions from controls, beside the table of comparisons."""
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
        for find_remarks in (_cause, _gain):
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
    """Return the training time as measured."""
    if time is None:
        return "Time not measured"
    given = {"time": "Time", "epochs": "Equal epochs, time"}.get(equal, "Any time, here")
    return f"{given} {time.mean:.2f} ({time.low:.2f} to {time.high:.2f}) of the baseline's"


def _cause(verdict: "Verdict", lead: "Comparison") -> list[str]:
    """Return the cause of a loss if the finalist made fewer steps than the baseline."""
    if verdict.steps is None or lead.difference.mean >= 0:
        return []
    steps, baseline_steps = verdict.steps
    if verdict.design.equal != "time" or NO_LONGER * steps > baseline_steps:
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


def _controls(verdict: "Verdict", lead: "Comparison") -> list[str]:
    """Return what the other variants show about the leading finalist, and controls that stand out."""
    signed, decimals, lines = verdict.design.signed, verdict.design.decimals, []
    finalists = [c for c in verdict.comparisons if c.variant.role is Role.FINALIST]
    none_better = not any(comparison.difference.low > 0 for comparison in finalists)
    pending = " and ".join(variant.name for variant in verdict.pending)
    if pending and verdict.winner is not None:
        lines.append(f"Train {pending} to learn the cause of the gain.")
    for comparison in verdict.comparisons:
        d = comparison.lead
        if d is None or comparison.variant.role in (Role.PLAIN, Role.LONGER):  # in the figures
            continue
        text = f"{lead.variant.name} against {comparison.variant.name}: {d.mean:+.{decimals}f} "
        text += f"{signed} ({confidence_interval(d, decimals)})"
        # Before all seeds are trained, each further seed would be another interim analysis.
        whole = comparison.variant not in verdict.pending
        if whole and verdict.winner is not None and d.low <= 0 and comparison.variant.role in _CONCLUSIONS:
            text += f", so {_CONCLUSIONS[comparison.variant.role]}"
        lines.append(f"{text}.")
        # It stands out if its interval is above 0, in no more time.
        time = comparison.time
        fair = verdict.design.equal != "time" or (time is not None and time.high <= NO_LONGER)
        stands_out = comparison.variant.role in _CONCLUSIONS and comparison.difference.low > 0 and fair
        if whole and verdict.complete and none_better and stands_out:
            lines.append(
                f"Confirm {comparison.variant.name} with other seeds: it was better than the baseline, but "
                f"this confirmation does not test it."
            )
    return lines

"""The text of a verdict: a headline, a line on how sure it is, one on what it costs, advice, and remarks."""

from typing import TYPE_CHECKING, Any

from automl.base.units import format_duration, pluralize
from automl.confirm.decision import MAX_PAIRS
from automl.confirm.statistics import NO_LONGER
from search.record import Role

if TYPE_CHECKING:
    from automl.confirm.design import Design
    from automl.confirm.ledger import Decision
    from automl.confirm.rules import Evidence
    from automl.confirm.statistics import Difference
    from automl.confirm.verdict import Comparison, Verdict, WrittenVerdict

CLOSED_GATE = 0.05  # an absolute gate below which a module hardly changes its input
INCOMPLETE = "A seed counts once the baseline and all {finalist}s have trained with it."

# The conclusion if the winner is not shown to be better than a control.
_CONCLUSIONS = {
    Role.CONTROL: "the gain is not shown to come from attention",
    Role.RANDOM: "its type and site are not shown to matter",
}


def lines(verdict: "Verdict | WrittenVerdict") -> list[str]:
    """Return a verdict in at most three lines: what to do, how sure it is, what it costs."""
    first = f"{verdict.headline}. {verdict.advice}" if verdict.advice else verdict.headline
    return [line for line in (first, verdict.figures, verdict.cost) if line]


def headline(verdict: "Verdict") -> str:
    """Return what was shown: the outcome, the difference with its interval, and of what."""
    if verdict.noise is not None:
        return verdict.words
    if verdict.outcome is None or verdict.lead is None:
        return "No verdict: fewer than two seeds are complete"
    if verdict.awaited:
        return f"No verdict yet: {pluralize(len(verdict.awaited), 'opponents')} of a finalist still to train"
    if not verdict.complete:
        count = verdict.lead.difference.count
        return f"No verdict yet: {count} of {len(verdict.design.seeds)} seeds are complete"
    return f"Cannot tell: {verdict.words}" if verdict.outcome == "cannot tell" else verdict.words


def fields(design: "Design", lead: "Comparison", evidence: "Evidence") -> dict[str, Any]:
    """Return the values of the fields in the words of a rule."""
    guess = ""
    if design.chance is not None:
        value, unit = design.chance.value, f" {design.unit}" * (design.unit != design.metric.name)
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
    word, same = ("ahead", d.ahead) if d.mean >= 0 else ("behind", d.behind)
    return f"{word} on all {d.count} seeds" if same == d.count else f"{word} on {same} of {d.count} seeds"


def _equal(evidence: "Evidence", lead: "Comparison") -> str:
    """Return the opponent that the leading finalist is not shown to beat, in words."""
    other = evidence.equal
    if other is None:
        return ""
    if other.difference is None and lead.most_time is not None:
        return f"takes up to {lead.most_time:.2f} times as long"
    return f"{other.name} {'may do' if other.difference and other.difference.mean > 0 else 'does'} as well"


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
    elif _size(d, design) not in verdict.words and (
        verdict.decision is not None or verdict.outcome in ("equivalent", "cannot tell")
    ):
        sentences.append(f"{d.mean:+.{decimals}f} {design.signed}{_ends(d, decimals)}, {_seeds(d)}")
    if verdict.complete and verdict.outcome in ("better", "undecided"):
        beaten = [(other.name, other.difference) for other in lead.opponents if other.difference]
        others = [f"against {name} {o.mean:+.{decimals}f}{_ends(o, decimals)}" for name, o in beaten]
        sentences += [f"A{', '.join(others)[1:]}"] * bool(others)
    if images := _images(lead, decimals):
        sentences.append(images[0].upper() + images[1:])
    sentences.append(_probability(verdict, lead) if verdict.decision is None else _evidence(verdict.decision))
    if verdict.failed_attempts:
        failed = ", ".join(f"{count} of {name}" for name, count in verdict.failed_attempts.items())
        sentences.append(f"Failed attempts: {failed}")
    # The headline of a gain names the finalist.
    name = "" if verdict.final == "better" else f"{lead.variant.title}: "
    return f"{name}{'. '.join(sentences)}."


def cost(verdict: "Verdict") -> str:
    """Return what the leading finalist costs: its time, its steps, and when it reaches the baseline."""
    if verdict.lead is None or verdict.outcome is None or verdict.noise is not None:
        return ""
    sentences = ["Time not measured"]
    if (time := verdict.lead.time) is not None:
        equal = {"time": "Time", "epochs": "Equal epochs, time"}.get(verdict.design.equal, "Any time, here")
        sentences = [f"{equal} {time.mean:.2f} ({time.low:.2f} to {time.high:.2f}) of the baseline's"]
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
    if verdict.final in (None, "cannot tell") or verdict.lead is None:
        return ""
    opaque, design, lead = verdict.design.kind.opaque, verdict.design, verdict.lead
    untried = lead.difference.low > 0 and any(other.difference is None for other in lead.opponents)
    if opaque and verdict.final == "undecided" and untried:
        return "Add {budget}, its length of training, to the baseline, or --any-time if time does not matter."
    if verdict.decision is not None:
        return ""
    if verdict.final == "better":
        return "Use it." if opaque else "Use it: automl export --best"
    if verdict.final != "undecided":
        return "Keep the baseline." if opaque else "Use the baseline: automl export --baseline"
    if seeds := verdict.settling:
        spent = verdict.seconds and f", {format_duration(seeds * verdict.seconds)} of training,"
        command = "" if opaque else f": automl confirm --again --seeds {seeds}"
        return f"{seeds} fresh seeds{spent or ''} settle it with 80 % power{command}"
    size = None if verdict.shown is None else f"{verdict.shown:.{design.decimals}f} {design.unit}"
    return f"{MAX_PAIRS} seeds would show a difference of {size} with 80 % power." if size else ""


def remarks(verdict: "Verdict") -> list[str]:
    """Return lines with reasons and the conclusions from controls, beside the table of comparisons."""
    if verdict.lead is None or verdict.outcome is None:
        return []
    if verdict.decision is not None:
        return verdict.decision.lines()
    limits = _limits(verdict, verdict.lead) if verdict.complete else []
    return [*limits, *_controls(verdict, verdict.lead)]


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
    if comparison.images is None:
        return ""
    interval = " to ".join(f"{end:.{decimals}f}" for end in comparison.images)
    is_same = interval in confidence_interval(comparison.difference, decimals)
    return "" if is_same else f"over seeds and test examples {interval}"


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


def _limits(verdict: "Verdict", lead: "Comparison") -> list[str]:
    """Return the reason of an open verdict, and limits of the margin, a gain, and modules hardly used."""
    design, d, images = verdict.design, lead.difference, lead.images
    lines = [verdict.explanation] * bool(verdict.explanation)
    inputs = f"{design.inputs} test inputs"
    if 0 < design.margin == design.resolution:
        lines.append(f"The margin is {design.margin:.3g} {design.unit}, the effect of one of the {inputs}.")
    if d.mean < 0 and verdict.gate is not None and verdict.gate < CLOSED_GATE:
        lines.append(f"The largest gate is {verdict.gate:.2g}, so the model is close to the plain backbone.")
    if verdict.winner is not None and d.mean < design.margin:
        lines.append(f"The gain is below the margin of {design.margin:g} {design.unit}.")
    if verdict.winner is not None and images is not None and images[0] <= 0:
        lines.append(
            f"Test on more inputs before you generalize: the interval over seeds and "
            f"{f'these {design.inputs}' if design.inputs else 'the'} test examples contains 0."
        )
    return lines


def _controls(verdict: "Verdict", lead: "Comparison") -> list[str]:
    """Return what the other variants show about the leading finalist, and controls that stand out."""
    signed, decimals, lines = verdict.design.signed, verdict.design.decimals, []
    none_better = all(c.difference.low <= 0 for c in verdict.comparisons if c.variant.role is Role.FINALIST)
    if verdict.pending and verdict.winner is not None:
        names = " and ".join(variant.name for variant in verdict.pending)
        lines.append(f"Train {names} to learn the cause of the gain.")
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
            name = f"Confirm {comparison.variant.name} with other seeds"
            lines.append(f"{name}: it was better than the baseline, but this confirmation does not test it.")
    return lines

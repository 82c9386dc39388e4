"""The sentences of a verdict."""

import math
from typing import TYPE_CHECKING

from automl.confirm.statistics import EQUAL_TIME, Ratio
from search.record import Role

if TYPE_CHECKING:
    from automl.confirm.design import Design
    from automl.confirm.statistics import Difference
    from automl.confirm.verdict import Comparison, Verdict

CLOSED = 0.05  # a |gate| below which a module hardly changes what it is put into
FEW = 10  # seeds below which a sentence says how few they are

# What it means when the winner is not better than such a variant.
_EXPLAINS = {
    Role.CONTROL: "the gain is not shown to come from attention",
    Role.RANDOM: "its type and place are not shown to matter",
}


def sentence(verdict: "Verdict") -> str:
    """The verdict in words."""
    if verdict.word is None or verdict.lead is None:
        return "No verdict: fewer than two seeds are complete for the baseline and all finalists."
    design, name, d = verdict.design, verdict.lead.variant.name, verdict.lead.difference
    unit, margin, places = design.unit, design.margin, design.places
    sure = _sure(verdict, places)
    time = _time(verdict.lead.time, design.equal, _steps(verdict))
    if design.shared_trainings:
        name = f"{name}, added to a shared partial training,"
    details = (
        f"{sure}, {_seeds(d.count, 'shared partial trainings' if design.shared_trainings else 'seeds')}{time}"
    )
    differs = f"{name} differs from the tuned baseline by {d.mean:+.{places}f} {design.signed} ({details}"
    if verdict.said is None:
        return f"No verdict yet, with {d.count} of {len(verdict.design.seeds)} seeds. So far {differs}."
    own = _against_plain(verdict)
    if verdict.said == "better":
        small = f" That is less than the margin of {margin:g} {unit}." if d.mean < margin else ""
        return (
            f"{name} is better than the tuned baseline by {d.mean:.{places}f} {unit} ({details}.{own}{small}"
        )
    cause = _cause(verdict)
    if verdict.said == "worse":
        return f"No finalist is better. The best of them, {differs}, and is worse.{cause}"
    if verdict.said == "equivalent":
        return f"No difference that matters: {differs}, and no finalist by as much as {margin:g} {unit}."
    if verdict.said == "cannot tell":
        return f"Cannot tell: {verdict.reason}. {differs}.{own}{cause}"
    return f"No detectable difference: {differs}.{_advice(verdict)}{cause}"


def confidence_interval(d: "Difference", places: int) -> str:
    """Return the interval in words, also where there are too few pairs for one."""
    if not d.bounded:
        return f"no 95 % CI with {d.count} seeds"
    return f"95 % CI {d.low:.{places}f} to {d.high:.{places}f}"


def _advice(verdict: "Verdict") -> str:
    """Return how many seeds would show a difference like the one seen, and one of the margin."""
    design, lead = verdict.design, verdict.lead
    if lead is None or verdict.needed is None:
        return ""
    d, margin = lead.difference, f"{design.margin:g} {design.unit}"
    if abs(d.mean) > design.margin and verdict.needed_here is not None:
        return (
            f" To show a difference as large as this one, {verdict.needed_here} fresh seeds are needed (with "
            f"80 % power); for one of {margin}, {verdict.needed}."
        )
    if verdict.needed > d.count:
        return f" To show one of {margin}, {verdict.needed} fresh seeds are needed (with 80 % power)."
    return f" One of {margin} would have been detected with 80 % power."


def _against_plain(verdict: "Verdict") -> str:
    """Return the leading finalist's difference from the plain backbone with its own hyperparameters."""
    if verdict.lead is None or verdict.lead.plain is None:
        return ""
    d, design = verdict.lead.plain, verdict.design
    return (
        f" It differs from the plain backbone with its own hyperparameters ({verdict.lead.variant.plain}) by "
        f"{d.mean:+.{design.places}f} {design.signed} ({confidence_interval(d, design.places)})."
    )


def _cause(verdict: "Verdict") -> str:
    """Return what a loss comes from, where the finalist made fewer steps than the baseline."""
    if verdict.lead is None or verdict.steps is None or verdict.lead.difference.mean >= 0:
        return ""
    ours, theirs = verdict.steps
    if verdict.design.equal != "time" or ours > (1 - EQUAL_TIME) * theirs:
        return ""
    if verdict.gate is not None and verdict.gate < CLOSED:
        return (
            f" Its gates stayed below {_above(verdict.gate)}, so it is close to the plain backbone, and it "
            f"costs time: {ours:.0f} steps in place of {theirs:.0f}."
        )
    return f" A step of it takes longer, so it made {ours:.0f} steps in place of {theirs:.0f}."


def _above(gate: float) -> str:
    """Return the least number of two digits that is not below `gate`."""
    if gate <= 0:
        return "0.001"
    step = 10.0 ** (math.floor(math.log10(gate)) - 1)
    return f"{math.ceil(gate / step * (1 + 1e-9)) * step:.2g}"


def _steps(verdict: "Verdict") -> str:
    """Return the steps of both, where they are not the same."""
    if verdict.steps is None or round(verdict.steps[0]) == round(verdict.steps[1]):
        return ""
    return f", {verdict.steps[0]:.0f} steps against {verdict.steps[1]:.0f}"


def _sure(verdict: "Verdict", places: int) -> str:
    """Return the intervals and p of the leading finalist's difference, all for one and the same level."""
    assert verdict.lead is not None
    d, images, level = verdict.lead.difference, verdict.lead.images, verdict.level
    sure = confidence_interval(d, places)
    if images is not None:
        sure += f", over seeds and test examples {images[0]:.{places}f} to {images[1]:.{places}f}"
    sure += f", p = {verdict.lead.p_holm:.2g}"
    if level is not None:
        sure += f" at level {level:.2g} of this analysis"
    family = sum(comparison.p_holm is not None for comparison in verdict.comparisons)
    return f"{sure}, adjusted for {family} finalists" if family > 1 else sure


def remarks(verdict: "Verdict") -> list[str]:
    """What the other variants show about the leading finalist, and which controls stand out themselves."""
    if verdict.lead is None:
        return []
    unit, places, made = verdict.design.signed, verdict.design.places, []
    finalists = [one for one in verdict.comparisons if one.variant.role is Role.FINALIST]
    none_better = not any(one.difference.low > 0 for one in finalists)
    images = verdict.lead.images
    if verdict.winner is not None and images is not None and images[0] <= 0:
        made.append(
            f"It is better on these {verdict.design.inputs} test inputs, which are too few to show it for "
            f"others like them: the interval over seeds and test examples contains 0."
        )
    pending = " and ".join(variant.name for variant in verdict.pending)
    if pending and verdict.winner is not None:
        made.append(f"Where the gain comes from is not known until {pending} are trained.")
    elif pending and verdict.complete:
        made.append("No gain is shown, so the controls were not trained; `confirm --controls` trains them.")
    for comparison in verdict.comparisons:
        d = comparison.lead
        if d is None or comparison.variant.role is Role.PLAIN:  # which the sentence has
            continue
        text = f"{verdict.lead.variant.name} against {comparison.variant.name}: {d.mean:+.{places}f} {unit}"
        text += f" ({confidence_interval(d, places)})"
        whole = comparison.variant not in verdict.pending  # or each further seed would be another look
        if whole and verdict.winner is not None and d.low <= 0 and comparison.variant.role in _EXPLAINS:
            text += f", so that {_EXPLAINS[comparison.variant.role]}"
        made.append(text + ".")
        if whole and verdict.complete and none_better and _stands_out(comparison, verdict.design):
            made.append(
                f"{comparison.variant.name} came out better than the baseline, but is not what this "
                f"confirmation tests; other seeds would have to show it."
            )
    return made


def _stands_out(comparison: "Comparison", design: "Design") -> bool:
    """A control is better than the baseline by its interval, in no more time."""
    time = comparison.time
    fair = design.equal == "epochs" or (time is not None and time.no_longer)
    return comparison.variant.role in _EXPLAINS and comparison.difference.low > 0 and fair


def against_baseline(comparison: "Comparison", design: "Design") -> str:
    """A variant's difference from the baseline."""
    d, images, time, places = comparison.difference, comparison.images, comparison.time, design.places
    signed = design.signed if design.maximize else f"{design.signed},"
    also = ""
    if images is not None:
        also = f" (over seeds and test examples {images[0]:.{places}f} to {images[1]:.{places}f})"
    spent = "time not measured" if time is None else f"{time.mean:.2f} times its training time"
    return (
        f"{comparison.variant.name}: {d.mean:+.{places}f} {signed} vs the baseline, "
        f"{confidence_interval(d, places)}{also}, {spent}"
    )


def _seeds(count: int, noun: str) -> str:
    return f"with only {count} {noun}" if count < FEW else f"{count} paired {noun}"


def _time(time: Ratio | None, equal: str, steps: str) -> str:
    """Return the end of what is in brackets, and what comes after it: the time, as it was measured."""
    if time is None:
        return f"{', equal epochs' if equal == 'epochs' else ''}{steps}, time not measured)"
    if equal == "epochs":
        return f", equal epochs{steps}, at {time.mean:.2f} times the baseline's training time)"
    return f"{steps}, equal time)" if time.equal else f"{steps}) {_spent(time)}"


def _spent(time: Ratio) -> str:
    return (
        f"at {time.mean:.2f} times the baseline's training time (95 % CI {time.low:.2f} to {time.high:.2f})"
    )

"""The sentences of a verdict."""

from typing import TYPE_CHECKING

from automl.confirm.statistics import Ratio
from search.record import Role

if TYPE_CHECKING:
    from automl.confirm.question import Question
    from automl.confirm.verdict import Comparison, Verdict

FEW = 10  # seeds below which a sentence says how few they are

# What it means when the winner is not better than such an arm.
_EXPLAINS = {
    Role.CONTROL: "the gain is not shown to come from attention",
    Role.RANDOM: "its type and place are not shown to matter",
}


def sentence(verdict: "Verdict") -> str:
    """The verdict in words."""
    if verdict.word is None or verdict.lead is None:
        return "No verdict: fewer than two seeds are complete for the baseline and all finalists."
    question, name, d = verdict.question, verdict.lead.arm.name, verdict.lead.difference
    unit, margin, places = question.unit, question.margin, question.places
    sure, time = _sure(verdict.lead, verdict.level, places), _time(verdict.lead.time, question.equal)
    if question.trunks:
        name = f"{name}, added to a trained trunk,"
    details = f"{sure}, {_seeds(d.count, 'trunks' if question.trunks else 'seeds')}{time}"
    differs = f"{name} differs from the tuned baseline by {d.mean:+.{places}f} {question.signed} ({details}"
    if verdict.said is None:
        return f"No verdict yet, with {d.count} of {len(verdict.question.seeds)} seeds. So far {differs}."
    if verdict.said == "better":
        small = f" That is less than the margin of {margin:g} {unit}." if d.mean < margin else ""
        return f"{name} is better than the tuned baseline by {d.mean:.{places}f} {unit} ({details}.{small}"
    if verdict.said == "worse":
        return f"No finalist is better. The best of them, {differs}, and is worse."
    if verdict.said == "equivalent":
        return f"No difference that matters: {differs}, and no finalist by as much as {margin:g} {unit}."
    if verdict.said == "cannot tell":
        return f"Cannot tell: {verdict.reason}. {differs}."
    more = ""
    if verdict.needed is not None and verdict.needed > d.count:
        more = f"; {verdict.needed} fresh seeds would be needed to detect {margin:g} {unit} with 80 % power"
    elif verdict.needed is not None:
        more = f"; one of {margin:g} {unit} would have been detected with 80 % power"
    return f"No detectable difference: {differs}{more}."


def _sure(lead: "Comparison", level: float | None, places: int) -> str:
    """The intervals and p of the leading finalist's difference."""
    d, images = lead.difference, lead.images
    sure = f"95 % CI {d.low:.{places}f} to {d.high:.{places}f}"
    if images is not None:
        sure += f", over seeds and test examples {images[0]:.{places}f} to {images[1]:.{places}f}"
    sure += f", p = {lead.p_holm:.2g}"
    return sure if level is None else f"{sure} at level {level:.2g} of this analysis"


def remarks(verdict: "Verdict") -> list[str]:
    """What the other arms show about the leading finalist, and which controls stand out themselves."""
    if verdict.lead is None:
        return []
    unit, places, made = verdict.question.signed, verdict.question.places, []
    finalists = [one for one in verdict.comparisons if one.arm.role is Role.FINALIST]
    none_better = not any(one.difference.low > 0 for one in finalists)
    images = verdict.lead.images
    if verdict.winner is not None and images is not None and images[0] <= 0:
        made.append(
            f"It is better on these {verdict.question.inputs} test inputs, which are too few to show it for "
            f"others like them: the interval over seeds and test examples contains 0."
        )
    pending = " and ".join(arm.name for arm in verdict.pending)
    if pending and verdict.winner is not None:
        made.append(f"Where the gain comes from is not known until {pending} are trained.")
    elif pending and verdict.complete:
        made.append("No gain is shown, so the controls were not trained; `confirm --controls` trains them.")
    for comparison in verdict.comparisons:
        d = comparison.lead
        if d is None:
            continue
        text = f"{verdict.lead.arm.name} against {comparison.arm.name}: {d.mean:+.{places}f} {unit}"
        text += f" (95 % CI {d.low:.{places}f} to {d.high:.{places}f})"
        whole = comparison.arm not in verdict.pending  # or each further seed would be another look
        if whole and verdict.winner is not None and d.low <= 0 and comparison.arm.role in _EXPLAINS:
            text += f", so that {_EXPLAINS[comparison.arm.role]}"
        made.append(text + ".")
        if whole and verdict.complete and none_better and _stands_out(comparison, verdict.question):
            made.append(
                f"{comparison.arm.name} came out better than the baseline, but is not what this confirmation "
                f"tests; other seeds would have to show it."
            )
    return made


def _stands_out(comparison: "Comparison", question: "Question") -> bool:
    """A control is better than the baseline by its interval, in no more time."""
    time = comparison.time
    fair = question.equal == "epochs" or (time is not None and time.no_longer)
    return comparison.arm.role in _EXPLAINS and comparison.difference.low > 0 and fair


def against_baseline(comparison: "Comparison", question: "Question") -> str:
    """An arm's difference from the baseline."""
    d, images, time, places = comparison.difference, comparison.images, comparison.time, question.places
    signed = question.signed if question.maximize else f"{question.signed},"
    also = ""
    if images is not None:
        also = f" (over seeds and test examples {images[0]:.{places}f} to {images[1]:.{places}f})"
    spent = "time not measured" if time is None else f"{time.mean:.2f} times its training time"
    return (
        f"{comparison.arm.name}: {d.mean:+.{places}f} {signed} vs the baseline, "
        f"95 % CI {d.low:.{places}f} to {d.high:.{places}f}{also}, {spent}"
    )


def _seeds(count: int, noun: str) -> str:
    return f"with only {count} {noun}" if count < FEW else f"{count} paired {noun}"


def _time(time: Ratio | None, equal: str) -> str:
    """The end of what is in brackets, and what comes after it: of the time, what was measured."""
    if time is None:
        return f"{', equal epochs' if equal == 'epochs' else ''}, time not measured)"
    if equal == "epochs":
        return f", equal epochs, at {time.mean:.2f} times the baseline's training time)"
    return ", equal time)" if time.equal else f") {_spent(time)}"


def _spent(time: Ratio) -> str:
    return (
        f"at {time.mean:.2f} times the baseline's training time (95 % CI {time.low:.2f} to {time.high:.2f})"
    )

"""Explain a verdict: facts of the trainings, the cause that they show, and the most useful next step.

Read `CAUSES` from top to bottom: the first one that applies explains. A cause says what was measured. That
it explains the result is a claim only where the words say so, and then with "may": one comparison shows what
happened, not what would have happened with more steps.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from automl.judge.decision import Outcome
from automl.judge.statistics import Difference, Ratio

SLOWER, MUCH_SLOWER = 1.05, 1.5  # times the baseline's time for a step
FEWER = 0.95  # times the baseline's steps
CLOSED_GATE = 0.05  # an absolute gate below which a module hardly changes its input

Step = Literal["", "epochs", "equal", "sites", "larger", "stop"]


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts of a leading finalist and the baseline, as the conditions of the causes ask for them.

    Attributes:
        outcome: The outcome of the verdict.
        equal: The budget in common: `time` or `epochs`.
        margin: The smallest difference that matters.
        slowdown: The time for a step, divided by the baseline's.
        steps: The steps of both, the baseline's last.
        rises: How much the validation score of both still rose at the end of training.
        gate: The largest absolute gate, if the modules have gates.
        modules: The number of modules.
    """

    outcome: Outcome
    equal: str = "time"
    margin: float = 0.0
    slowdown: Ratio | None = None
    steps: tuple[float, float] | None = None
    rises: Sequence[Difference | None] = (None, None)
    gate: float | None = None
    modules: int = 1

    @property
    def lost_steps(self) -> bool:
        """Return True if a step is shown to take longer, and equal time gave it fewer of them."""
        is_slower = self.slowdown is not None and self.slowdown.low > SLOWER
        fewer = self.steps is not None and self.steps[0] < FEWER * self.steps[1]
        return is_slower and fewer and self.equal == "time"

    @property
    def rose(self) -> tuple[bool, bool]:
        """Return for both whether the score is shown to have risen until the end."""
        ours, theirs = (rise is not None and rise.low > 0 for rise in self.rises)
        return ours, theirs

    @property
    def levelled(self) -> bool:
        """Return True if the finalist's score is shown to have risen by less than the margin."""
        rise = self.rises[0]
        return rise is not None and rise.high < self.margin

    @property
    def is_settled(self) -> bool:
        """Return True if the finalist is shown to be worse, or to make no difference."""
        return self.outcome in ("worse", "equivalent")

    def fields(self) -> dict[str, str]:
        """Return the values of the fields in the words of a cause."""
        slowdown, steps = self.slowdown, self.steps
        return {
            "slower": "" if slowdown is None else f"A step takes {slowdown.mean:.2f} times the baseline's",
            "steps": "" if steps is None else f"{steps[0]:.0f} steps against {steps[1]:.0f}",
            "gate": f"{self.gate or 0.0:.2g}",
            "whose": "both validation curves" if all(self.rose) else "its validation curve",
        }


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Cause of a verdict.

    Attributes:
        applies: The condition. It holds if this is true, and no earlier cause applies.
        words: The cause in a sentence, with fields of `Facts.fields`. Empty if the facts show none.
        next: The most useful next step, or empty if the facts do not favour one.
    """

    name: str
    applies: Callable[[Facts], bool]
    words: str = ""
    next: Callable[[Facts], Step] = lambda facts: "stop" if facts.is_settled else ""


def _cheaper(facts: Facts) -> Step:
    """Return how to spend less on modules."""
    if facts.modules > 1:
        return "sites"
    is_much = facts.slowdown is not None and facts.slowdown.low > MUCH_SLOWER
    return "larger" if is_much else "stop" if facts.is_settled else ""


CAUSES = (
    Cause(
        name="nothing to explain", applies=lambda f: f.outcome in ("cannot tell", "better"), next=lambda f: ""
    ),
    Cause(
        name="fewer steps while it rises",
        applies=lambda f: f.lost_steps and f.rose[0],
        words="{slower}, so equal time gave it {steps}, and {whose} still rose at the end. The missing steps "
        "may be why it is not shown to be better.",
        next=lambda f: "epochs" if f.rose[1] else "equal",
    ),
    Cause(
        name="gates closed",
        applies=lambda f: f.gate is not None and f.gate < CLOSED_GATE,
        words="Its largest gate is {gate}, so it is close to the model without modules.",
        next=lambda f: "epochs" if f.rose[0] else "stop" if f.is_settled else "",
    ),
    Cause(
        name="rising",
        applies=lambda f: f.rose[0],
        words="Its validation curve still rose at the end, so this is the result of an unfinished training.",
        next=lambda f: "epochs",
    ),
    Cause(
        name="fewer steps, levelled off",
        applies=lambda f: f.lost_steps and f.levelled,
        words="{slower}, so equal time gave it {steps}. Its validation curve had levelled off, so missing "
        "steps are not shown to be the cause.",
        next=_cheaper,
    ),
    Cause(
        name="fewer steps",
        applies=lambda f: f.lost_steps,
        words="{slower}, so equal time gave it {steps}. Whether its validation curve still rose is not "
        "known.",
        next=lambda f: "equal",
    ),
    Cause(
        name="levelled off",
        applies=lambda f: f.levelled,
        words="Its validation curve had levelled off, so a short training is not shown to be the cause.",
    ),
    Cause(name="unknown", applies=lambda f: True),
)


def explain(facts: Facts) -> tuple[str, Step]:
    """Return the cause in words, or an empty text, and the next step."""
    cause = next(cause for cause in CAUSES if cause.applies(facts))
    return cause.words.format(**facts.fields()), cause.next(facts)

"""The rules of a verdict: each with its condition, its outcome and its words.

Read `RULES` from top to bottom: the first rule that applies decides. There is no verdict before the baseline
and the finalists have two seeds in common.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest

from automl.confirm.decision import Level, Outcome, step_down
from automl.confirm.statistics import ALPHA, EQUAL_TIME, Difference, Ratio


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Facts that the scores of some seeds show, as the conditions of the rules ask for them.

    A finalist is its position in `differences`. Lists of finalists begin with the largest mean.

    Attributes:
        differences: The difference of each finalist from the baseline.
        plain: Its difference from the plain variant with its hyperparameters, or None if that is the baseline
            or could not be trained. Empty if no finalist has one.
        times: Its time ratio, or None if that was not measured. Empty if times need not be equal.
        family: The planned number of finalists. If some dropped out, the others are not called equivalent. By
            default none has.
        level: The level of this analysis, from the level of all together.
        constant: The name of a command that has the same score with so many seeds that it must ignore them.
        is_guessing: True if no variant is shown to beat guessing.
        is_coarse: True if the margin is smaller than the effect of one test input.
        of_commands: True if the trainings are commands.
    """

    differences: Sequence[Difference]
    plain: Sequence[Difference | None] = ()
    times: Sequence[Ratio | None] = ()
    family: int | None = None
    level: Level = lambda alpha: alpha
    constant: str = ""
    is_guessing: bool = False
    is_coarse: bool = False
    of_commands: bool = False

    @cached_property
    def both(self) -> list[Difference]:
        """Differences from the baseline, with the larger p of two: against it, and against the plain variant.

        Both have to be shown, so neither needs a stricter level (R. Berger 1982).
        """
        return [
            d if other is None or d.mean <= 0 else replace(d, p=max(d.p, other.p) if other.mean > 0 else 1.0)
            for d, other in zip_longest(self.differences, self.plain)
        ]

    @cached_property
    def ranking(self) -> list[int]:
        """All finalists, the largest mean first."""
        means = [difference.mean for difference in self.differences]
        return sorted(range(len(means)), key=lambda i: means[i], reverse=True)

    @cached_property
    def ahead(self) -> list[int]:
        """Finalists that beat the baseline and their plain variant, by Holm's procedure over all of them."""
        return self._ahead(self.both)

    @cached_property
    def better(self) -> list[int]:
        """Finalists that beat both, in no more time."""
        return [i for i in self.ahead if self.took(i, lambda time: time.no_longer)]

    @cached_property
    def ahead_of_baseline(self) -> list[int]:
        """Finalists that beat the baseline in no more time, whatever their plain variant shows."""
        return [i for i in self._ahead(self.differences) if self.took(i, lambda time: time.no_longer)]

    @cached_property
    def is_behind(self) -> bool:
        """True if the best finalist is worse than the baseline."""
        best = self.ranking[0]
        return self.both[best].mean <= 0 and self._rejected(self.both)[best]

    @property
    def is_worse(self) -> bool:
        """True if it is worse in no less time."""
        return self.is_behind and self.took(self.ranking[0], lambda time: time.no_shorter)

    @cached_property
    def is_within_margin(self) -> bool:
        """True if each planned finalist differs from the baseline by less than the margin.

        Each of them has to pass, which needs no correction (R. Berger 1982). Each of a pair of one-sided
        tests has half the nominal level of a two-sided one of twice the rate.
        """
        bound = self.level(2 * ALPHA) / 2
        whole = self.family is None or len(self.differences) == self.family
        return whole and all(d.p_margin <= bound for d in self.differences)

    @cached_property
    def lead(self) -> int:
        """The finalist that the verdict is about: the best of those that are shown to be ahead, or of all."""
        unexplained = [] if self.is_within_margin else self.ahead_of_baseline
        return [*self.better, *self.ahead, *unexplained, *self.ranking][0]

    @cached_property
    def is_selected(self) -> bool:
        """True if only the scores show something, and not with runs that failed counted."""
        if not any(d is not None and d.as_scored for d in (*self.differences, *self.plain)):
            return False
        scored = replace(
            self,
            differences=[d.as_scored or d for d in self.differences],
            plain=[d and (d.as_scored or d) for d in self.plain],
        )
        return decide(scored).outcome in ("better", "worse", "equivalent")

    def _rejected(self, differences: Sequence[Difference]) -> list[bool]:
        return step_down([d.p for d in differences], self.level, family=self.family)

    def _ahead(self, differences: Sequence[Difference]) -> list[int]:
        rejected = self._rejected(differences)
        return [i for i in self.ranking if rejected[i] and differences[i].mean > 0]

    def took(self, finalist: int, condition: Callable[[Ratio], bool]) -> bool:
        """Return whether a finalist's measured time meets a condition, if times have to be equal."""
        time = self.times[finalist] if self.times else None
        return not self.times or (time is not None and condition(time))


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Rule of a verdict.

    Attributes:
        applies: The condition. It holds if this is true, and no earlier rule applies.
        outcome: What the verdict is then.
        words: The headline, with fields of `wording.fields`. Of `cannot tell`, the reason.
        explanation: The reason in a full sentence.
        stops: True if it ends a sequential confirmation before all seeds are trained.
    """

    name: str
    applies: Callable[[Evidence], object]
    outcome: Outcome
    words: str
    explanation: str = ""
    stops: bool = False


_EQUAL = f"Time counts as equal if its 95 % CI is within {1 - EQUAL_TIME:g} to {1 + EQUAL_TIME:g}."


def _time_rules(
    what: str,
    when: str,
    words: str,
    applies: Callable[[Evidence], object],
    is_fair: Callable[[Evidence], bool],
) -> tuple[Rule, Rule]:
    """Return the rules of an effect that the time may explain: it was not measured, or is not fair."""
    unmeasured = Rule(
        name=f"{what} in unmeasured time",
        applies=lambda e: applies(e) and None in e.times,
        outcome="cannot tell",
        words="training times were not measured",
        explanation=f"{words[0].upper()}{words[1:]}.",
    )
    unfair = Rule(
        name=f"{what} in {when} time",
        applies=lambda e: applies(e) and not is_fair(e),
        outcome="cannot tell",
        words=words,
        explanation=_EQUAL,
    )
    return unmeasured, unfair


RULES = (
    Rule(
        name="seed ignored",
        applies=lambda e: e.constant,
        outcome="cannot tell",
        words="{constant} gives the same score with every seed",
        explanation="The {count} scores of {constant} are equal in every digit. Either it ignores its seed, "
        "or the metric is too coarse. Use {{seed}} in the training script for the initial weights and the "
        "order of the data, or choose another metric.",
        stops=True,
    ),
    Rule(
        name="guessing",
        applies=lambda e: e.is_guessing,
        outcome="cannot tell",
        words="no variant is shown to beat guessing",
        explanation="The {metric} of guessing is {guess}.",
    ),
    Rule(
        name="better",
        applies=lambda e: e.better,
        outcome="better",
        words="{winner} beats the {baseline} by {difference}",
        stops=True,
    ),
    *_time_rules(
        "gain", "more", "the gain may come from longer training", lambda e: e.ahead, lambda e: bool(e.better)
    ),
    Rule(
        name="worse",
        applies=lambda e: e.is_worse,
        outcome="worse",
        words="No {finalist} beats the {baseline}: the best is worse by {difference}",
        stops=True,
    ),
    *_time_rules(
        "loss", "less", "the loss may come from shorter training", lambda e: e.is_behind, lambda e: e.is_worse
    ),
    *_time_rules(
        "equivalent",
        "other",
        "finalists and baseline may have trained for different times",
        lambda e: e.is_within_margin,
        lambda e: all(e.took(i, lambda time: time.equal) for i in range(len(e.times))),
    ),
    Rule(
        name="tried again",
        applies=lambda e: e.is_selected,
        outcome="cannot tell",
        words="runs failed and were tried again, which selects lucky ones",
        explanation="Where one side failed more often than the other, a pair counts as the largest loss, and "
        "against a loss as the largest gain. With that, nothing is shown. Compare on fresh seeds.",
    ),
    Rule(
        name="hyperparameters",
        applies=lambda e: e.ahead_of_baseline and not e.is_within_margin,
        outcome="cannot tell",
        words="the gain may come from the hyperparameters",
        explanation="The plain backbone with the finalist's own hyperparameters is not shown to be worse.",
    ),
    Rule(
        name="margin too small",
        applies=lambda e: e.is_coarse,
        outcome="cannot tell",
        words="the margin is smaller than the effect of one test input",
        explanation="Set a larger --margin than {margin}: one of the {inputs} test inputs changes the score "
        "by {resolution}.",
    ),
    Rule(
        name="equivalent",
        applies=lambda e: e.is_within_margin,
        outcome="equivalent",
        words="No {finalist} differs from the {baseline} by as much as {margin}",
        stops=True,
    ),
    Rule(
        name="undecided between commands",
        applies=lambda e: e.of_commands,
        outcome="undecided",
        words="No detectable difference from the {baseline} in {count} seeds",
    ),
    Rule(
        name="undecided",
        applies=lambda e: True,
        outcome="undecided",
        words="Undecided: {count} seeds show no difference from the {baseline}",
    ),
)


def decide(evidence: Evidence) -> Rule:
    """Return the first rule that applies."""
    return next(rule for rule in RULES if rule.applies(evidence))

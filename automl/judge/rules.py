"""The rules of a verdict: each with its condition, its outcome and its words.

Read `RULES` from top to bottom: the first rule that applies decides. There is no verdict before the baseline
and the finalists have two seeds in common.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from automl.judge.decision import Level, Outcome, step_down
from automl.judge.statistics import ALPHA, Difference


@dataclass(frozen=True, kw_only=True)
class Opponent:
    """Model that a finalist has to beat beside the tuned baseline.

    Attributes:
        name: The model in words.
        difference: The finalist's difference from it, or None before it has trained with all seeds.
        is_baseline: True if it is the tuned baseline, trained longer.
    """

    name: str
    difference: Difference | None
    is_baseline: bool = False


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Facts that the scores of some seeds show, as the conditions of the rules ask for them.

    A finalist is its position in `differences`. Lists of finalists begin with the largest mean.

    Attributes:
        differences: The difference of each finalist from the tuned baseline.
        opponents: What each of them has to beat, too. Empty if no finalist has any.
        untimed: Finalists whose training time is not known, if it has to be.
        family: The planned number of finalists. If some dropped out, the others are not called equivalent. By
            default none has.
        level: The level of this analysis, from the level of all together.
        constant: The name of a command that has the same score with so many seeds that it must ignore them.
        is_guessing: True if no variant is shown to beat guessing.
        is_coarse: True if the margin is smaller than the effect of one test input.
    """

    differences: Sequence[Difference]
    opponents: Sequence[Sequence[Opponent]] = ()
    untimed: Sequence[int] = ()
    family: int | None = None
    level: Level = lambda alpha: alpha
    constant: str = ""
    is_guessing: bool = False
    is_coarse: bool = False

    @cached_property
    def joint(self) -> list[Difference]:
        """Differences from the baseline, with the largest p of those from it and from all opponents.

        All have to be shown, so none needs a stricter level (R. Berger 1982).
        """
        joint = []
        for i, d in enumerate(self.differences):
            beaten = [other.difference for other in self._opponents(i) if other.difference is not None]
            p = max(d.p, *(other.p if other.mean > 0 else 1.0 for other in beaten), 0.0)
            joint.append(replace(d, p=p) if d.mean > 0 else d)
        return joint

    @cached_property
    def ranking(self) -> list[int]:
        """All finalists, the largest mean first."""
        means = [difference.mean for difference in self.differences]
        return sorted(range(len(means)), key=lambda i: means[i], reverse=True)

    @cached_property
    def ahead(self) -> list[int]:
        """Finalists that beat the baseline, whatever other opponents show. By Holm's procedure over all."""
        return self._ahead(self.differences)

    @cached_property
    def better(self) -> list[int]:
        """Finalists that beat the baseline and each opponent."""
        return [
            i
            for i in self._ahead(self.joint)
            if i not in self.untimed and all(other.difference is not None for other in self._opponents(i))
        ]

    @cached_property
    def is_behind(self) -> bool:
        """True if the best finalist is worse than the baseline."""
        best = self.ranking[0]
        return self.differences[best].mean <= 0 and self._rejected(self.differences)[best]

    @cached_property
    def is_near(self) -> bool:
        """True if each planned finalist differs from the tuned baseline by less than the margin.

        Each of them has to pass, which needs no correction (R. Berger 1982). Each of a pair of one-sided
        tests has half the nominal level of a two-sided one of twice the rate.
        """
        whole = self.family is None or len(self.differences) == self.family
        return whole and all(map(self._is_within, self.differences))

    @cached_property
    def is_equivalent(self) -> bool:
        """True if each also differs by less than the margin from the baseline that has trained longer."""
        others = [each for i in self.ranking for each in self._opponents(i) if each.is_baseline]
        return self.is_near and all(
            other.difference is not None and self._is_within(other.difference) for other in others
        )

    @cached_property
    def lead(self) -> int:
        """The finalist that the verdict is about: the best of those that are shown to be ahead, or of all."""
        ahead = [] if self.is_equivalent else self.ahead
        return next(iter((*self.better, *ahead, *self.ranking)))

    @cached_property
    def equal(self) -> Opponent | None:
        """The opponent that the leading finalist is least shown to beat. None if it beats all."""

        def p(other: Opponent) -> float:
            d = other.difference
            return math.inf if d is None else d.p if d.mean > 0 else 1.0

        return None if self.lead in self.better else max(self._opponents(self.lead), key=p, default=None)

    @cached_property
    def is_selected(self) -> bool:
        """True if only the scores show something, and not with runs that failed counted."""

        def scored_alone(d: Difference) -> Difference:
            return d.as_scored or d

        opponents = [self._opponents(i) for i in range(len(self.differences))]
        known = [other.difference for others in opponents for other in others if other.difference is not None]
        if not any(d.as_scored for d in (*self.differences, *known)):
            return False
        scored = replace(
            self,
            differences=list(map(scored_alone, self.differences)),
            opponents=[
                [
                    replace(other, difference=other.difference and scored_alone(other.difference))
                    for other in others
                ]
                for others in opponents
            ],
        )
        return decide(scored).outcome in ("better", "worse", "equivalent")

    def _opponents(self, finalist: int) -> Sequence[Opponent]:
        return self.opponents[finalist] if self.opponents else ()

    def _is_within(self, difference: Difference) -> bool:
        return difference.p_margin <= self.level(2 * ALPHA) / 2

    def _rejected(self, differences: Sequence[Difference]) -> list[bool]:
        return step_down([d.p for d in differences], self.level, family=self.family)

    def _ahead(self, differences: Sequence[Difference]) -> list[int]:
        rejected = self._rejected(differences)
        return [i for i in self.ranking if rejected[i] and differences[i].mean > 0]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Rule of a verdict.

    Attributes:
        applies: The condition. It holds if this is true, and no earlier rule applies.
        outcome: What the verdict is then.
        words: The headline, with fields of `verdict.word_fields`. Of `cannot tell`, the reason.
        explanation: The reason in full sentences, and what to do where something can be done.
        stops: True if it ends a sequential confirmation before all seeds are trained.
    """

    name: str
    applies: Callable[[Evidence], object]
    outcome: Outcome
    words: str
    explanation: str = ""
    stops: bool = False


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
        words="Better by {difference}, {seeds}: {winner} beats the baseline",
        stops=True,
    ),
    Rule(
        name="no time",
        applies=lambda e: {*e.ahead} & {*e.untimed},
        outcome="cannot tell",
        words="training times were not measured",
        explanation="The gain may come from longer training. Compare again, with fresh seeds: each training "
        "is then timed.",
    ),
    Rule(
        name="worse",
        applies=lambda e: e.is_behind,
        outcome="worse",
        words="Worse by {difference}, {seeds}{less_time}: no {finalist} beats the {baseline}",
        stops=True,
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
        name="equivalent",
        applies=lambda e: e.is_equivalent and not e.is_coarse,
        outcome="equivalent",
        words="No {finalist} differs from the {baseline} by as much as {margin}",
        stops=True,
    ),
    Rule(
        name="not against all",
        applies=lambda e: e.ahead,
        outcome="undecided",
        words="Undecided: better than the {baseline} by {difference}, but {equal}",
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
        name="undecided",
        applies=lambda e: True,
        outcome="undecided",
        words="Undecided: {signed} in {count} seeds may be chance",
    ),
)


def decide(evidence: Evidence) -> Rule:
    """Return the first rule that applies."""
    return next(rule for rule in RULES if rule.applies(evidence))

"""Asynchronous successive halving: at each rung, the best third of the trials so far continues.

A trial that does not is stopped and never resumed. This is the stopping variant, which Ray Tune has too;
the paper's variant promotes: trials pause at a rung, and resume when they are among its best third.

Source: L. Li et al., A System for Massively Parallel Hyperparameter Tuning (2018), arXiv 1810.05934,
algorithm 2; with several objectives a trial is as good as the number of trials on better Pareto fronts is
small (R. Schmucker et al., Multi-objective Asynchronous Successive Halving (2021), arXiv 2106.12639).

Ray's ASHAScheduler does the same for one objective, but keeps its rungs to itself and under Ray's own
names of the trials; these are rebuilt from the study when a search is resumed after a crash.
"""

from collections.abc import Sequence
from math import ceil

# At each rung the best third continues.
REDUCTION = 3

Score = Sequence[float]  # the larger the better, each


def grace_period(budget: float) -> float:
    """The first rung: a ninth of the budget, so that at most two rungs prune before its end.

    But two epochs where there are four: after one, the averages of batch norm still lag behind on a
    small dataset, and every validation score is noise.
    """
    return max(1, min(2, budget // 2), ceil(budget / REDUCTION**2))


class Rungs:
    """The rungs below `budget`, in the unit of a trial's resource: equal time, or epochs.

    Groups of trials are compared separately, each with its own kind.
    """

    def __init__(self, budget: float) -> None:
        self.milestones: list[float] = []
        milestone = grace_period(budget)
        while milestone < budget:
            self.milestones.append(milestone)
            milestone *= REDUCTION
        # One table a milestone: the scores of each group by the trial's number.
        self._tables: list[dict[str, dict[int, Score]]] = [{} for _ in self.milestones]

    def enter(self, number: int, group: str, resource: float, score: Score) -> bool | None:
        """Whether a trial that has reached `resource` continues; None where it has reached no new rung."""
        decision = None
        for milestone, table in zip(self.milestones, self._tables, strict=True):
            scores = table.setdefault(group, {})
            if resource >= milestone and number not in scores:
                scores[number] = score
                ahead = sum(_better(other, score, scores) for other in scores.values())
                goes_on = ahead < ceil(len(scores) / REDUCTION)
                decision = goes_on if decision is None else decision and goes_on
        return decision

    def occupancy(self) -> list[tuple[float, int]]:
        """Each milestone with the number of trials that came to it."""
        return [
            (milestone, sum(map(len, table.values())))
            for milestone, table in zip(self.milestones, self._tables, strict=True)
        ]


def _better(one: Score, other: Score, scores: dict[int, Score]) -> bool:
    if len(one) == 1:
        return one[0] > other[0]
    every = list(scores.values())
    return _front(one, every) < _front(other, every)


def _front(score: Score, every: Sequence[Score]) -> int:
    """How many trials are at least as good in everything and better in something."""
    return sum(dominates(other, score) for other in every)


def dominates(one: Score, other: Score, noise: Sequence[float] | None = None) -> bool:
    """At least as good in every objective, and better in one.

    noise: of each objective, the part of its value by which two that are equal may differ; to be better takes
    more.
    """
    noise = noise if noise is not None else [0.0] * len(one)
    return all(a >= b for a, b in zip(one, other, strict=True)) and any(
        a - b > part * abs(b) for a, b, part in zip(one, other, noise, strict=True)
    )

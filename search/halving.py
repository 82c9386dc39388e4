"""Asynchronous successive halving: at each rung, the best third of the trials so far continues.

The other trials are stopped and never resumed. This is the stopping variant, which Ray Tune has, too. In the
paper's variant, trials pause at a rung and resume when they are among its best third.

Source: L. Li et al., A System for Massively Parallel Hyperparameter Tuning (2018), arXiv 1810.05934,
algorithm 2. With several objectives, trials are ranked by the number of trials that dominate them (R.
Schmucker et al., Multi-objective Asynchronous Successive Halving (2021), arXiv 2106.12639).

Ray's ASHAScheduler does the same for one objective. But it keeps its rungs private, under Ray's own names of
trials; here rungs are rebuilt from the study when a search resumes after a crash.
"""

from collections.abc import Sequence
from math import ceil

REDUCTION = 3

Score = Sequence[float]  # larger is better, for each value


def grace_period(budget: float) -> float:
    """Return the first rung: a ninth of the budget, so that at most two rungs prune before its end.

    With a budget of four epochs or more it is at least two. After one epoch, the averages of batch norm still
    lag on a small dataset, and every validation score is noise.
    """
    return max(1, min(2, budget // 2), ceil(budget / REDUCTION**2))


class Rungs:
    """Rungs below `budget`, in equal time or epochs, where each group of trials is compared separately."""

    def __init__(self, budget: float) -> None:
        self.milestones: list[float] = []
        milestone = grace_period(budget)
        while milestone < budget:
            self.milestones.append(milestone)
            milestone *= REDUCTION
        # One table per milestone: the scores of each group by the trial's number.
        self._tables: list[dict[str, dict[int, Score]]] = [{} for _ in self.milestones]

    def enter(self, number: int, group: str, resource: float, score: Score) -> bool | None:
        """Return whether a trial at `resource` continues, or None if it has reached no new rung."""
        decision = None
        for milestone, table in zip(self.milestones, self._tables, strict=True):
            scores = table.setdefault(group, {})
            if resource >= milestone and number not in scores:
                scores[number] = score
                better = _count_better(score, list(scores.values()))
                continues = better < ceil(len(scores) / REDUCTION)
                decision = continues if decision is None else decision and continues
        return decision


def _count_better(score: Score, scores: Sequence[Score]) -> int:
    """Return the number of scores that are better than one of them."""
    if len(score) == 1:
        return sum(other[0] > score[0] for other in scores)
    own = _front(score, scores)
    return sum(_front(other, scores) < own for other in scores)


def _front(score: Score, scores: Sequence[Score]) -> int:
    """Return the number of trials that dominate `score`."""
    return sum(dominates(other, score) for other in scores)


def dominates(score: Score, other: Score, noise: Sequence[float] | None = None) -> bool:
    """Return True if `score` is at least as good in every objective and better in one.

    `noise` holds, for each objective, the fraction of the value by which equal scores may differ. A better
    score must exceed it.
    """
    noise = noise if noise is not None else [0.0] * len(score)
    return all(a >= b for a, b in zip(score, other, strict=True)) and any(
        a - b > fraction * abs(b) for a, b, fraction in zip(score, other, noise, strict=True)
    )

"""Asynchronous successive halving: at each rung, the best third of the trials so far continues.

The other trials are stopped and never resumed. This is the stopping variant, which Ray Tune has, too. In the
paper's variant, trials pause at a rung and resume when they are among its best third.

Source: L. Li et al., A System for Massively Parallel Hyperparameter Tuning (2018), arXiv 1810.05934,
algorithm 2.

Ray's ASHAScheduler does the same. But it keeps its rungs private, under Ray's own names of
trials; here rungs are rebuilt from the study when a search resumes after a crash.
"""

from math import ceil

REDUCTION = 3


def grace_period(budget: float) -> float:
    """Return the first rung: a ninth of the budget, so that at most two rungs prune before its end.

    With a budget of four epochs or more it is at least two. After one epoch, the averages of batch norm still
    lag on a small dataset, and every validation score is noise.
    """
    return max(1, min(2, budget // 2), ceil(budget / REDUCTION**2))


class Rungs:
    """Rungs below `budget`, where the scores of each group of trials are compared. A larger one is better."""

    def __init__(self, budget: float) -> None:
        self.milestones: list[float] = []
        milestone = grace_period(budget)
        while milestone < budget:
            self.milestones.append(milestone)
            milestone *= REDUCTION
        # One table per milestone: the scores of each group by the trial's number.
        self._tables: list[dict[str, dict[int, float]]] = [{} for _ in self.milestones]

    def enter(self, number: int, group: str, resource: float, score: float) -> bool | None:
        """Return whether a trial at `resource` continues, or None if it has reached no new rung."""
        decision = None
        for milestone, table in zip(self.milestones, self._tables, strict=True):
            scores = table.setdefault(group, {})
            if resource >= milestone and number not in scores:
                scores[number] = score
                better = sum(other > score for other in scores.values())
                continues = better < ceil(len(scores) / REDUCTION)
                decision = continues if decision is None else decision and continues
        return decision

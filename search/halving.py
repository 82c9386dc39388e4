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
ROUNDING = 1e-9  # of a resource, which is a fraction of the budget


def grace_period(budget: float, reports: int = 1) -> float:
    """Return the first rung: a ninth of the budget, so that at most two rungs prune before its end.

    It is a multiple of `1 / reports` epochs. With one report an epoch and a budget of four epochs or more, it
    is at least two epochs. After one, the averages of batch norm still lag on a small dataset, and every
    validation score is noise. An epoch with several reports is long, and they do not lag at its first one.
    """
    least = min(2, budget // 2) if reports == 1 else 1
    return max(1, least, ceil(budget * reports / REDUCTION**2)) / reports


class Rungs:
    """Rungs below `budget`, where the scores of each group of trials are compared. A larger one is better."""

    def __init__(self, budget: float, reports: int = 1) -> None:
        self.milestones: list[float] = []
        milestone = grace_period(budget, reports)
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
            if resource > milestone - ROUNDING and number not in scores:
                scores[number] = score
                better = sum(other > score for other in scores.values())
                continues = better < ceil(len(scores) / REDUCTION)
                decision = continues if decision is None else decision and continues
        return decision

"""Rungs, and the trials that continue from them."""

import random

import pytest

from search.halving import REDUCTION, Rungs, grace_period


def occupancy(rungs: Rungs) -> list[tuple[float, int]]:
    """Return each milestone with the number of trials that reached it."""
    counts = (sum(map(len, table.values())) for table in rungs._tables)
    return list(zip(rungs.milestones, counts, strict=True))


MILESTONES: list[tuple[int, int, list[float]]] = [
    *((2, 1, [1]), (3, 1, [1]), (4, 1, [2]), (6, 1, [2]), (9, 1, [2, 6]), (18, 1, [2, 6]), (27, 1, [3, 9])),
    *((28, 1, [4, 12]), (49, 1, [6, 18]), (50, 1, [6, 18]), (90, 1, [10, 30])),
    *((1, 9, [1 / 9, 1 / 3]), (1, 5, [0.2, 0.6]), (2, 5, [0.4, 1.2]), (4, 3, [2 / 3, 2])),
]


@pytest.mark.parametrize(("budget", "reports", "milestones"), MILESTONES)
def test_milestones_are_reached_in_spite_of_rounding(
    budget: int, reports: int, milestones: list[float]
) -> None:
    rungs = Rungs(budget, reports)
    assert rungs.milestones == pytest.approx(milestones)
    assert grace_period(budget, reports) == rungs.milestones[0]
    assert (Rungs(1).milestones, grace_period(1)) == ([], 1)
    resources = [budget * (i / (budget * reports)) for i in range(1, budget * reports)]
    reached = [resource for resource in resources if rungs.enter(0, "all", resource, 0.5)]
    assert reached == pytest.approx(milestones)


def test_the_best_third_so_far_continues() -> None:
    rungs = Rungs(9)
    drawn = random.Random(0)
    scores: list[float] = []
    for number in range(60):
        score = drawn.random()
        scores.append(score)
        rank = sorted(scores, reverse=True).index(score)
        assert rungs.enter(number, "all", 2, score) is (rank < -(-len(scores) // REDUCTION))
    assert occupancy(rungs) == [(2, 60), (6, 0)]
    rungs = Rungs(9)
    assert all(rungs.enter(number, "all", 2, 0.5) for number in range(10)), "equal trials are not pruned"


def test_a_rung_is_entered_once() -> None:
    rungs = Rungs(27)
    assert [rungs.enter(0, "all", at, 0.9 - at / 100) for at in (1, 2.9, 3, 3.5, 8, 9.1, 27)] == [
        None, None, True, None, None, True, None
    ]  # fmt: skip
    assert rungs.enter(1, "all", 3, 0.1) is False
    assert rungs.enter(1, "all", 5, 1.0) is None, "its score at the rung counts, not a later one"
    assert occupancy(rungs) == [(3, 2), (9, 1)]


def test_groups_are_compared_separately() -> None:
    rungs = Rungs(9)
    assert rungs.enter(0, "baseline", 2, 0.9)
    assert rungs.enter(1, "candidate", 2, 0.5)
    assert rungs.enter(2, "candidate", 2, 0.4) is False
    assert rungs.enter(3, "baseline", 2, 0.8) is False
    assert occupancy(rungs) == [(2, 4), (6, 0)]


@pytest.mark.parametrize("time_ratio", [0.5, 1.0, 1.3, 2.0, 3.0])
def test_a_slow_trial_reaches_as_many_rungs(time_ratio: float) -> None:
    """Rungs are in equal time: at a time ratio of two, half the epochs pass the same rungs."""
    budget = 18
    rungs = Rungs(budget)
    epochs = round(budget / time_ratio)
    decisions = [rungs.enter(0, "all", min(budget, i * time_ratio), 0.5) for i in range(1, epochs + 1)]
    assert decisions.count(True) == len(rungs.milestones) == 2
    assert occupancy(rungs) == [(2, 1), (6, 1)]

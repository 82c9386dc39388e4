"""Estimate how long the rest of a search takes."""

from collections.abc import Collection, Mapping
from heapq import heapify, heapreplace
from itertools import pairwise
from math import inf
from statistics import fmean

from search.halving import REDUCTION
from search.record import State, TrialRecord
from search.trial_scheduler import Plan

LEAST = 2  # number of trials that must have trained to their end before there is an estimate
WEIGHT = 10  # number of trials that the plan's mean resource counts as, beside those that ran


def expected_resource(plan: Plan, reached: float = 0.0, trials: float = inf) -> float:
    """Return the mean resource that one of `trials` uses from `reached` on.

    At each rung the best third of those that have come so far continues, and so does the first one.
    """
    marks = [reached, *(mark for mark in plan.rungs().milestones if mark > reached)]
    marks.append(max(marks[-1], plan.budget))
    total, fraction = 0.0, 1.0
    for start, end in pairwise(marks):
        total += fraction * (end - start)
        fraction = min(fraction, (fraction + 1 / trials) / REDUCTION)
    return total


def estimate_left(
    plan: Plan,
    records: Collection[TrialRecord],
    *,
    trials: int,
    slots: int,
    overhead: float = 0.0,
    elapsed: Mapping[int, float] | None = None,
) -> float | None:
    """Estimate the time until `trials` have ended [s]. Return None if too few have trained to their end.

    Args:
        plan: The plan of the search. Where it prunes, most trials end at a rung.
        records: The ended and the running trials.
        trials: The number of trials, with those that have not begun.
        slots: The number of trials at once.
        overhead: The time of a trial besides that of its epochs [s].
        elapsed: The time since the start or the last epoch of each running trial, by number [s].
    """
    running = [record for record in records if record.state is State.RUNNING]
    done = [record for record in records if record.state is not State.RUNNING]
    trained = [record for record in done if record.resource]
    if len(trained) < LEAST:
        return None
    seconds = sum(metrics.get("seconds", 0.0) for record in records for metrics in record.history)
    pace = seconds / sum(record.resource for record in records)
    rests = {record.number: expected_resource(plan, record.resource, trials) for record in running}
    trains = [*trained, *(record for record in running if record.resource)]
    resources = [record.resource + rests.get(record.number, 0.0) for record in trains]
    mean = fmean([*resources, *[expected_resource(plan, trials=trials)] * WEIGHT])
    failed = len(done) - len(trained)
    each = overhead + pace * mean * len(trains) / (len(trains) + failed)
    # Each slot is busy until its trial ends, and takes the next trial then.
    busy = [
        max(0.0, pace * rests[r.number] + (0.0 if r.history else overhead) - (elapsed or {}).get(r.number, 0))
        for r in running
    ]
    busy += [0.0] * (slots - len(busy))
    whole, rest = divmod(max(0, trials - len(done) - len(running)), len(busy))
    heapify(busy)
    for _ in range(rest):
        heapreplace(busy, busy[0] + each)
    return max(busy) + whole * each

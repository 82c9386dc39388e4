"""PASHA: asynchronous successive halving whose top rung rises only while rankings disagree.

A training pauses at each rung, and the best third of a rung, rounded up, is resumed. The search begins with
two rungs. It adds the next one when the top rung ranks trainings differently from the rung below. Scores that
differ by at most a tolerance may change places. The tolerance is estimated from pairs of curves that cross
and cross back, as in Syne Tune's `PASHARungSystem`.

Source: O. Bohdal et al., PASHA: Efficient HPO and NAS with Progressive Resource Allocation (2023).
"""

from collections.abc import Sequence
from math import ceil

import numpy as np

PERCENTILE = 90  # of the differences between curves that cross and cross back
FACTOR = 3  # one of so many trainings is resumed


class Pasha:
    """State of a search.

    Attributes:
        curves: Scores of each training after every epoch. Larger is better.
        top: Index of the highest rung in use.
    """

    def __init__(self, rungs: Sequence[int]) -> None:
        self.curves: list[list[float]] = []
        self.top = 1
        self._rungs = rungs
        self._tolerance = 0.0

    def choose(self) -> int:
        """Return the paused training to resume, or begin a new one."""
        for rung in reversed(self._rungs[: self.top]):
            reached = [i for i, curve in enumerate(self.curves) if len(curve) >= rung]
            if len(reached) == 1:  # has no order
                continue
            best = sorted(reached, key=lambda i: -self.curves[i][rung - 1])
            for i in best[: ceil(len(reached) / FACTOR)]:
                if len(self.curves[i]) == rung:
                    return i
        self.curves.append([])
        return len(self.curves) - 1

    def target(self, training: int) -> int:
        """Return the epochs after which a training pauses next."""
        return next(rung for rung in self._rungs if rung > len(self.curves[training]))

    def best(self) -> int:
        """Return the training with the best score among those with the most epochs."""
        return max(range(len(self.curves)), key=lambda i: (len(self.curves[i]), self.curves[i][-1]))

    def update(self, training: int) -> None:
        """Raise the top rung if a training that paused there shows that rankings disagree."""
        high, low = self._rungs[self.top], self._rungs[self.top - 1]
        if len(self.curves[training]) != high or high == self._rungs[-1]:
            return
        curves = np.array([curve for curve in self.curves if len(curve) == high])
        left, right = np.triu_indices(len(curves), k=1)
        ahead = curves[left] > curves[right]
        as_last = ahead == ahead[:, -1:]
        back = (np.maximum.accumulate(as_last, axis=1) & ~as_last).any(axis=1)
        if back.any():
            self._tolerance = np.percentile(np.abs(curves[left, -1] - curves[right, -1])[back], PERCENTILE)
        before = curves[:, low - 1]
        # At each place, the training of the top rung and that of the rung below have to be about as good.
        moved = before[np.argsort(-curves[:, -1])] - np.sort(before)[::-1]
        self.top += bool((np.abs(moved) > self._tolerance).any())

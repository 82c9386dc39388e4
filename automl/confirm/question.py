"""What a confirmation asks."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Question:
    """What a confirmation asks, fixed before it begins.

    seeds: those that are planned, in order. equal: what the arms are given the same of, `time` or `epochs`.
    margin: the least difference that matters, in `unit`.
    sequential: stop as soon as there is an answer. metric: of the scores; maximize: whether more is better.
    scale: makes a score's difference one in `unit`.
    inputs: of the test split. chance: the score of one who always gives the same answer, where the metric is
    the share of right answers; None where it is not.
    """

    seeds: Sequence[int]
    equal: str
    margin: float
    sequential: bool
    metric: str
    maximize: bool
    scale: float
    unit: str
    inputs: int
    chance: float | None

    @property
    def resolution(self) -> float:
        """What one test input is worth, in `unit`; 0 where that is not known."""
        return self.scale / self.inputs if self.chance is not None else 0.0

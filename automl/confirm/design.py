"""The design of a confirmation: what it tests."""

from collections.abc import Sequence
from dataclasses import dataclass

from automl.base import units
from search.metric import Chance, signed_unit


@dataclass(frozen=True, kw_only=True)
class Design:
    """Design of a confirmation, fixed before it begins.

    Attributes:
        seeds: The planned seeds, in order.
        equal: The budget that all variants have in common: `time`, `epochs`, or for commands `none`.
        margin: The smallest difference that matters, in `unit`.
        sequential: Stop as soon as the verdict is final.
        metric: The metric of the scores.
        maximize: True if more is better.
        scale: The factor from a difference of scores to one in `unit`.
        unit: The unit of differences, such as `points`.
        inputs: The number of inputs of the test split. 0 if only the user's code knows it.
        chance: The score of guessing on the test split, or None if it is not known.
        shared_trainings: True if placements are inserted into shared partial trainings, one for each seed,
            which all variants continue.
        commands: True if the trainings are commands, of which only the metric is known.
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
    chance: Chance | None
    shared_trainings: bool = False
    commands: bool = False

    @property
    def decimals(self) -> int:
        """Number of decimals of a printed difference."""
        return units.decimals(self.margin)

    @property
    def signed(self) -> str:
        """Unit of a signed difference. Above 0 is better."""
        return signed_unit(self.unit, self.maximize)

    @property
    def resolution(self) -> float:
        """Effect of one test input on the score, in `unit`, or 0 if it is not known."""
        return self.scale * self.chance.step if self.chance is not None else 0.0

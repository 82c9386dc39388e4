"""What a confirmation tests."""

from collections.abc import Sequence
from dataclasses import dataclass

from automl.config import units
from search.metric import Chance, signed_unit


@dataclass(frozen=True, kw_only=True)
class Design:
    """What a confirmation tests, fixed before it begins.

    seeds: those that are planned, in order. equal: the budget held equal across variants, `time` or `epochs`.
    margin: the least difference that matters, in `unit`.
    shared partial trainings: whether placements go into shared partial trainings, one for each seed, which
    all variants share. sequential: stop as soon as the verdict is decided. metric: of the scores; maximize:
    whether more is better.
    scale: makes a score's difference one in `unit`.
    inputs: of the test split. chance: what guessing comes to there; None where that is not known.
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

    @property
    def decimals(self) -> int:
        """Decimal places of a difference."""
        return units.decimals(self.margin)

    @property
    def signed(self) -> str:
        """The unit behind a difference with its sign, which counts from the better end."""
        return signed_unit(self.unit, self.maximize)

    @property
    def resolution(self) -> float:
        """What one test input is worth, in `unit`; 0 where that is not known."""
        return self.scale * self.chance.step if self.chance is not None else 0.0

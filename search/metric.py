"""Metrics: direction, unit, how they are displayed, and what guessing comes to."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import isfinite
from typing import Literal

from attention import InputError

GUESSING_RATE = 0.001  # the rate at which one that guesses comes above `Metric.guessing`


@dataclass(frozen=True, kw_only=True)
class Chance:
    """What is known of a metric on a split before there is a model.

    value: of one who guesses, in the long run. error: the standard deviation of that on this split.
    step: what the answer to one input is worth.

    Raises InputError for numbers that are none.
    """

    value: float
    error: float
    step: float

    def __post_init__(self) -> None:
        if not all(map(isfinite, (self.value, self.error, self.step))):
            raise InputError(f"chance must be finite numbers; got {self}")


@dataclass(frozen=True, kw_only=True)
class Metric:
    """The metric by which models of a task are compared.

    Attributes:
        name: The key in a record of metrics.
        maximize: True if a higher value is better.
        scale: The factor that values are multiplied by for display.
        unit: The unit of a displayed value, such as `%`.
        gap: The unit of a displayed difference, such as `points`. By default `unit`.
        margin: The smallest difference that matters, in the unit of a difference.

    Raises:
        InputError: The name is empty, or a number cannot be.

    Example:
        >>> import automl
        >>> metric = automl.Metric(name="accuracy", maximize=True, scale=100, unit="%", gap="points")
        >>> metric.show(0.8213), metric.show_gap(0.0125)
        ('82.13 %', '+1.25 points')
    """

    name: str
    maximize: bool
    scale: float = 1.0
    unit: str = ""
    gap: str = ""
    margin: float = 0.5

    def __post_init__(self) -> None:
        if not self.name:
            raise InputError("a metric needs a name")
        if not (isfinite(self.scale) and self.scale > 0):
            raise InputError(f"scale of metric {self.name!r} must be above 0; got {self.scale}")
        if not (isfinite(self.margin) and self.margin >= 0):
            raise InputError(f"margin of metric {self.name!r} must be 0 or more; got {self.margin}")

    @property
    def sign(self) -> int:
        """1 where more is better, -1 where less is."""
        return 1 if self.maximize else -1

    @property
    def mode(self) -> Literal["max", "min"]:
        """As Ray Tune has it."""
        return "max" if self.maximize else "min"

    @property
    def label(self) -> str:
        """Of an axis or a column."""
        return f"{self.name}, {self.unit}" if self.unit else self.name

    @property
    def gap_unit(self) -> str:
        """Of a difference of two values."""
        return self.gap or self.unit or self.name

    def show(self, value: float) -> str:
        """A value as people read it: `82.13 %`."""
        return f"{self.scale * value:.4g}{f' {self.unit}' if self.unit else ''}"

    def show_gap(self, difference: float) -> str:
        """A difference of two values with its sign: `+1.25 points`."""
        return f"{self.scale * difference:+.3g} {self.gap_unit}"

    @property
    def declaration(self) -> "Metric":
        """The metric without the code of a subclass, which another process may not have."""
        return Metric(**{field.name: getattr(self, field.name) for field in fields(Metric)})

    def chance(self, counts: Sequence[int], population: Sequence[int] = ()) -> Chance | None:
        """Return what guessing comes to on a split with so many inputs of each class; None if not known.

        population: inputs of each class in training and validation. If it is balanced, its shares are those
        of the classes, and the split's majority is an accident.
        """
        return None

    def standard_error(self, value: float, inputs: int) -> float | None:
        """Return that of a value on so many inputs; None if only repetitions show it."""
        return None

    def guessing(self, chance: Chance, inputs: int) -> float:
        """Return the score than which guessing is better in one of a thousand cases at most.

        Here it goes by the normal distribution.
        """
        from scipy.special import ndtri

        return chance.value + self.sign * float(ndtri(1 - GUESSING_RATE)) * chance.error


def signed_unit(unit: str, maximize: bool) -> str:
    """What stands behind a difference with its sign: the unit, and which way is better if not plain."""
    return unit if maximize else f"{unit}, where above 0 is better"


MRR = Metric(name="mrr", maximize=True, margin=0.01)  # the mean reciprocal rank, from 0 to 1
EPE = Metric(name="epe", maximize=False, unit="px", margin=0.02)  # the end-point error of disparities
BOX_AP = Metric(name="box_ap", maximize=True, scale=100.0, gap="points")  # COCO's average precision
MASK_AP = Metric(name="mask_ap", maximize=True, scale=100.0, gap="points")
DETECTION = (BOX_AP, MASK_AP)  # the default first
MIOU = Metric(name="miou", maximize=True, scale=100.0, unit="%", gap="points")  # intersection over union
PIXEL_ACCURACY = Metric(name="pixel_accuracy", maximize=True, scale=100.0, unit="%", gap="points")
DICE = Metric(name="dice", maximize=True, scale=100.0, unit="%", gap="points")
SEGMENTATION = (MIOU, PIXEL_ACCURACY, DICE)  # the default first

"""Metrics: direction, unit, display, and the score of guessing."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from math import isfinite
from typing import Literal

from automl.base.errors import InputError

GUESSING_RATE = 0.001  # the probability that guessing scores above `Metric.guessing`


@dataclass(frozen=True, kw_only=True)
class Chance:
    """Score of guessing on a split.

    Attributes:
        value: The expected score of guessing.
        error: Its standard deviation on this split.
        step: The change of the metric by one answer.

    Raises:
        InputError: A number is not finite.
    """

    value: float
    error: float
    step: float

    def __post_init__(self) -> None:
        if not all(map(isfinite, (self.value, self.error, self.step))):
            raise InputError(f"chance must be finite numbers; got {self}")


@dataclass(frozen=True, kw_only=True)
class Metric:
    """Metric that compares the models of a task.

    Attributes:
        name: The key in a record of metrics.
        maximize: True if a higher value is better.
        scale: The factor that values are multiplied by for display.
        unit: The unit of a displayed value, such as `%`.
        gap: The unit of a displayed difference. By default `unit`, or `points` for `%`.
        margin: The smallest difference that matters, in the unit of a difference.

    Raises:
        InputError: The name is empty, or a number is out of its range.

    Example:
        >>> import automl
        >>> metric = automl.Metric(name="accuracy", maximize=True, scale=100, unit="%", gap="points")
        >>> metric.show(0.8213)
        '82.13 %'
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
        """Return 1 if higher is better, and -1 otherwise."""
        return 1 if self.maximize else -1

    @property
    def mode(self) -> Literal["max", "min"]:
        """Return the direction in Ray Tune's words."""
        return "max" if self.maximize else "min"

    @property
    def label(self) -> str:
        """Return the label of an axis or a column."""
        return f"{self.name}, {self.unit}" if self.unit else self.name

    @property
    def gap_unit(self) -> str:
        """Return the unit of a difference."""
        return self.gap or ("points" if self.unit == "%" else self.unit) or self.name

    def margin_over(self, step: float) -> float:
        """Return the margin where a difference is at least `step`. A metric without a margin keeps none.

        Args:
            step: The effect of one input, in the unit of a difference.

        Returns:
            The margin.
        """
        return max(self.margin, step) if self.margin else 0.0

    def show(self, value: float) -> str:
        """Format a value, such as `82.13 %`.

        Args:
            value: The value.

        Returns:
            The scaled value with its unit.
        """
        return f"{self.scale * value:.4g}{f' {self.unit}' if self.unit else ''}"

    @property
    def declaration(self) -> "Metric":
        """Return the metric without the code of a subclass, which other processes may lack."""
        return Metric(**{field.name: getattr(self, field.name) for field in fields(Metric)})

    def chance(self, counts: Sequence[int], population: Sequence[int] = ()) -> Chance | None:
        """Return the score of guessing on a split.

        Args:
            counts: The inputs of each class in the split.
            population: The inputs of each class in training and validation. If it is balanced, its fractions
                are those of the classes, and the majority in the split is an accident.

        Returns:
            The score of guessing, or None if it is unknown.
        """
        return None

    def standard_error(self, value: float, inputs: int) -> float | None:
        """Return the standard error of a value.

        Args:
            value: The value.
            inputs: The number of inputs it was measured on.

        Returns:
            The standard error, or None if only repetitions show it.
        """
        return None

    def guessing(self, chance: Chance, inputs: int) -> float:
        """Return the score that guessing exceeds in one of a thousand cases at most.

        By default it follows from the normal distribution.

        Args:
            chance: The score of guessing.
            inputs: The number of inputs of the split.

        Returns:
            The bound.
        """
        from scipy.special import ndtri

        return chance.value + self.sign * float(ndtri(1 - GUESSING_RATE)) * chance.error


def show_metrics(values: Mapping[str, float], metrics: Iterable[Metric]) -> str:
    """Format `accuracy 82.13 %, loss 0.5210`: with the units of `metrics`, others with four decimals."""
    known = {metric.name: metric for metric in metrics}
    shown = (
        (key, known[key].show(value) if key in known else f"{value:.4f}") for key, value in values.items()
    )
    return ", ".join(f"{key} {text}" for key, text in shown)


def signed_unit(unit: str, maximize: bool) -> str:
    """Return the unit of a signed difference, with the better direction if lower values are better."""
    return unit if maximize else f"{unit}, where above 0 is better"

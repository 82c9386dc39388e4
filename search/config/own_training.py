"""Configuration of a training by the user's own code: a function, or a command."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from search.config.sections import Training
from search.metric import Metric


@dataclass(frozen=True, kw_only=True)
class OwnTraining(Training):
    """Training by the user's own code, and the metric that it reports.

    Optimiser, schedule and augmentation are in that code.

    Attributes:
        batch_size: The number of inputs of a step, for measuring.
        parameters: The values of the hyperparameters that the code asked for.
        reports: The metric.
        chance: The score of guessing, or None if it is unknown.
    """

    parameters: Mapping[str, Any] = field(default_factory=dict)
    reports: Metric = field(default_factory=lambda: Metric(name="score", maximize=True, margin=0))
    chance: float | None = None

    @property
    def reported(self) -> Metric:
        """Return the metric."""
        return self.reports

    def hyperparameters(self) -> dict[str, Any]:
        """Return the values that own code has, by name."""
        return {"epochs": self.epochs, "batch_size": self.batch_size, **self.parameters}

    def summary(self) -> str:
        """Return the values that own code has, in a line."""
        values = {**self.parameters, "batch size": self.batch_size}
        return ", ".join(
            f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in values.items()
        )

    def problems(self) -> Iterator[str]:
        if self.epochs < 1:
            yield f"training.epochs must be 1 or more; got {self.epochs}"
        if self.insert_at:
            yield "training.insert_at must be 0, as own code cannot continue a shared partial training"

    def to_json(self) -> dict[str, Any]:
        """Convert to dictionaries and values, without the fields that own code does not use."""
        return {
            "epochs": self.epochs,
            "batch_size": self.batch_size,
            "parameters": dict(self.parameters),
            "reports": vars(self.reports.declaration),
            "chance": self.chance,
        }

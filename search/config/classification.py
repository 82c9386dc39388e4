"""Configuration of the training of classifiers."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from search.config.sections import Training

ClassWeights = Literal["none", "balanced"]


@dataclass(frozen=True, kw_only=True)
class ClassificationTraining(Training):
    """Training with cross-entropy.

    Attributes:
        label_smoothing: The label smoothing, from 0 to below 1.
        class_weights: Weights of the classes in the loss. `balanced` gives each class the same weight in an
            epoch: n / (k n_c) for n training inputs of k classes, n_c of them of class c.
    """

    label_smoothing: float = 0.1
    class_weights: ClassWeights = "none"

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if not 0 <= self.label_smoothing < 1:
            yield f"training.label_smoothing must be at least 0 and below 1; got {self.label_smoothing}"

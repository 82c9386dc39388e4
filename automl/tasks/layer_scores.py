"""The scores of a trained model with one layer replaced, which a search stores for its report."""

from collections.abc import Mapping
from dataclasses import dataclass

FILE, FORMAT = "sensitivity.json", 1


@dataclass(frozen=True, kw_only=True)
class LayerScores:
    """Scores of a model with one layer replaced.

    Attributes:
        metric: The primary metric.
        windows: The number of windows.
        original: The score of the model with its own layers.
        replaced: The score by site and type.
    """

    metric: str
    windows: int
    original: float
    replaced: Mapping[str, Mapping[str, float]]

"""Parts of a report that show a task: inputs to look at, and the scores with one layer replaced."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class ShownInputs:
    """Inputs of a model, and pictures of them.

    Attributes:
        pictures: Images uint8 `(H, W, 3)`; signals `(C, T)` without padding; or lists of tokens.
        names: A name for each input, such as its class.
        padded: Number of steps or tokens with padding.
    """

    inputs: Any
    pictures: Sequence[NDArray[np.generic] | list[str]]
    names: Sequence[str]
    padded: int = 1


def spread_over_classes(labels: Tensor, count: int) -> Tensor:
    """Return the indices of the first inputs: the first of each class, then the second of each, int64."""
    order = labels.argsort(stable=True)
    counts = labels.bincount()
    rank = torch.arange(len(labels)) - (counts.cumsum(0) - counts)[labels[order]]
    return order[rank.argsort(stable=True)][:count]

"""One network for several inputs, which pass it as one batch.

So each of its layers runs once and has one site for attention. Batch norm takes its statistics from all
inputs together.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn


class Siamese(nn.Module, ABC):
    """Base class of networks that compute the same features of several inputs.

    Attributes:
        inputs: Number of inputs. A layer inside receives so many batches as one.
    """

    inputs = 2

    @abstractmethod
    def features(self, x: Tensor) -> Tensor:
        """Compute the features `(B, D, ...)` of `x`, `(B, C, ...)`. Rows are independent."""

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the features `(B, D, ...)` of each input `(B, C, ...)`."""
        assert len(inputs) == self.inputs, len(inputs)
        # `chunk` would make a constant of the batch size in an exported graph.
        features: tuple[Tensor, ...] = (
            self.features(torch.cat(inputs)).unflatten(0, (self.inputs, -1)).unbind()
        )
        return features

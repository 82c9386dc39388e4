"""One network for several inputs, which go through it as one batch.

So each of its layers runs once, and has one place for attention; batch norm takes its statistics from all
inputs together.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn


class Siamese(nn.Module, ABC):
    """The same features of each input. inputs: how many there are; a layer inside sees so many batches."""

    inputs = 2

    @abstractmethod
    def features(self, x: Tensor) -> Tensor:
        """`(B, C, ...)` -> `(B, D, ...)`, each row from its own."""

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Each input `(B, C, ...)` -> `(B, D, ...)`."""
        assert len(inputs) == self.inputs, len(inputs)
        # Not `chunk`, which makes a constant of the batch where a graph is exported.
        found: tuple[Tensor, ...] = self.features(torch.cat(inputs)).unflatten(0, (self.inputs, -1)).unbind()
        return found

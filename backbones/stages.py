"""For models on top of a backbone: the feature maps of its stages, and one network for several inputs."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from backbones.trace import trace


class StoreOutput:
    """Hook that stores the output of a stage. A copy of the model has its own copy of the hook."""

    def __init__(self, maps: dict[str, Tensor], name: str) -> None:
        self.maps, self.name = maps, name

    def __call__(self, module: nn.Module, args: Any, output: Tensor) -> None:
        self.maps[self.name] = output


def remove_head(body: nn.Module, last: str, size: int) -> None:
    """Remove all submodules that run after `last` on images of `size` pixels, in place."""
    order = list(trace(body, torch.empty(2, 3, size, size)).outputs)
    after = [path for path in order[order.index(last) + 1 :] if not f"{last}.".startswith(f"{path}.")]
    after = [path for path in after if not path.startswith(f"{last}.")]
    for path in after:
        if not any(path.startswith(f"{other}.") for other in after):
            above, _, leaf = path.rpartition(".")
            setattr(body.get_submodule(above), leaf, nn.Identity())


class Siamese(nn.Module, ABC):
    """Base class of networks that compute the same features of several inputs, which pass them as one batch.

    So each layer runs once and has one site for attention. Batch norm takes its statistics from all inputs
    together.

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
        result: tuple[Tensor, ...] = self.features(torch.cat(inputs)).unflatten(0, (self.inputs, -1)).unbind()
        return result

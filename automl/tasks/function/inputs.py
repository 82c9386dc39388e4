"""Models that a training function gives, with their examples, and batches of an example."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from automl.base.errors import InputError
from backbones.example import Example, batch_size, first_tensor
from backbones.torch_internals import tree_map_only


@dataclass(frozen=True, kw_only=True)
class Placed:
    """The model that a function gave to `place`.

    Attributes:
        model: The model with the trial's placement.
        example: Its inputs.
        batch_size: The number of inputs of a training step.
    """

    model: nn.Module
    example: Example
    batch_size: int


@dataclass(frozen=True, kw_only=True)
class Exported:
    """The model that a function gave to `export`.

    Attributes:
        model: The model, which contains the placed one.
        example: Its inputs.
        labels: The names of its classes.
    """

    model: nn.Module
    example: Example
    labels: Sequence[str] = ()


def check_example(example: Any) -> None:
    """Raise InputError unless an example holds tensors with a batch as their first dimension."""
    tensor = first_tensor(example)
    if not isinstance(example, Tensor | tuple | dict) or tensor.ndim < 2 or not len(tensor):
        raise InputError(
            f"an example must be a tensor (B, ...), a tuple of them or a mapping of keyword arguments; got "
            f"{type(example).__name__} with a first tensor of shape {tuple(tensor.shape)}"
        )


def repeat(example: Example, count: int, device: torch.device) -> Example:
    """Return an example with `count` inputs, on a device. The inputs are those of the example in turn."""
    size = batch_size(example)
    rows = torch.arange(count) % size

    def repeat_rows(tensor: Tensor) -> Tensor:
        batched = tensor.ndim > 0 and len(tensor) == size
        return (tensor.cpu()[rows] if batched else tensor).to(device)

    repeated: Example = tree_map_only(Tensor, repeat_rows, example)
    return repeated

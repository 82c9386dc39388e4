"""Batches of a training function's example."""

from typing import Any

import torch
from torch import Tensor

from automl.base.errors import InputError
from backbones.example import Example, batch_size, first_tensor
from backbones.torch_internals import tree_map_only


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

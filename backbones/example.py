"""The example input that a model is traced with.

It is a tuple of positional arguments, a mapping of keyword arguments, or a single input: a tensor, or a list
of images for a detector.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from automl.base.errors import InputError
from backbones.torch_internals import tree_leaves, tree_map_only

Example: TypeAlias = Tensor | list[Any] | tuple[Any, ...] | Mapping[str, Any]


def call(model: nn.Module, example: Example) -> Any:
    """Call `model` with `example`.

    Wrap a tuple or a mapping that is a single argument as `(argument,)`.
    """
    args, kwargs = arguments(example)
    return model(*args, **kwargs)


def sum_outputs(model: nn.Module, example: Example) -> Tensor:
    """Return the sum of all outputs of `model`. Its backward pass takes as long as that of a loss."""
    outputs = [leaf for leaf in tree_leaves(call(model, example)) if isinstance(leaf, Tensor)]
    return sum((output.float().sum() for output in outputs if output.is_floating_point()), torch.zeros(()))


def arguments(example: Example) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and the keyword arguments of `example`."""
    if isinstance(example, Mapping):
        return (), dict(example)
    return (example if isinstance(example, tuple) else (example,)), {}


def first_tensor(example: Example) -> Tensor:
    """Return the first tensor of `example` that has dimensions. Raise `InputError` if there is none."""
    return _first(example)[0]


def batch_size(example: Example) -> int:
    """Return the first dimension of the first tensor, or the length of a list of images `(C, H, W)`."""
    tensor, argument = _first(example)
    return len(argument) if isinstance(argument, list) and tensor.ndim == 3 else tensor.shape[0]


def describe(example: Example) -> str:
    """Describe the shapes of the tensors in `example`, for messages."""
    if isinstance(example, Tensor):
        return f"an input of shape {tuple(example.shape)}"
    args, kwargs = arguments(example)
    shapes = [_shapes(value) for value in args] + [
        f"{name}={_shapes(value)}" for name, value in kwargs.items()
    ]
    return f"inputs of shapes {', '.join(shapes)}"


def _first(example: Example) -> tuple[Tensor, Any]:
    """Return the first tensor, and the argument that contains it."""
    args, kwargs = arguments(example)
    for argument in (*args, *kwargs.values()):
        for leaf in tree_leaves(argument):
            if isinstance(leaf, Tensor) and leaf.ndim:
                return leaf, argument
    raise InputError(
        f"an example of a model's input is a tensor, a tuple of positional arguments or a mapping of keyword "
        f"arguments with a tensor among them; got {example!r}"
    )


def _shapes(value: Any) -> str:
    return repr(tree_map_only(Tensor, lambda tensor: tuple(tensor.shape), value))

"""Models that a training function gives, with their examples: to place attention in, and to export."""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from automl.base.errors import InputError, describe_error
from automl.base.units import pluralize
from automl.task.deployment import Deployment
from backbones.example import Example, arguments, batch_size, first_tensor
from backbones.torch_internals import tree_leaves, tree_map_only


@dataclass(frozen=True, kw_only=True)
class Placed:
    """The model that a function gave to `place`, with the trial's placement and training batch size."""

    model: nn.Module
    example: Example
    batch_size: int


@dataclass(frozen=True, kw_only=True)
class Exported:
    """The arguments that a function gave to `export`. The model contains the placed one."""

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

    result: Example = tree_map_only(Tensor, repeat_rows, example)
    return result


NOISE = 0.1  # relative to the values of an example


class NamedArguments(nn.Module):
    """A model as a module from tensors to tensors, the last of which are the arguments `keywords`."""

    def __init__(self, model: nn.Module, keywords: Iterable[str]) -> None:
        super().__init__()
        self.model, self.keywords = model, tuple(keywords)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        positional = len(inputs) - len(self.keywords)
        keywords = dict(zip(self.keywords, inputs[positional:], strict=True))
        return tuple(name_outputs(self.model(*inputs[:positional], **keywords)).values())


def deploy(model: nn.Module, exported: Exported, inputs: Mapping[str, Tensor]) -> Deployment:
    """Return the deployment of a trained model, for two inputs from `name_inputs`.

    Raises InputError if the model fails, or an input or output has no batch as its first dimension.
    """
    module = NamedArguments(model, arguments(exported.example)[1]).eval()
    positional = [value for name, value in inputs.items() if name not in module.keywords]
    try:
        with torch.inference_mode():
            outputs = name_outputs(model(*positional, **{name: inputs[name] for name in module.keywords}))
    except Exception as error:  # the user's code raises errors of every kind
        raise InputError(
            f"the model in trial.export fails on its example: {describe_error(error)}"
        ) from error
    if not outputs:
        raise InputError("the model in trial.export returns no tensors")
    rows = len(next(iter(inputs.values())))
    for kind, tensors in (("input", inputs), ("output", outputs)):
        for name, tensor in tensors.items():
            if tensor.ndim == 0 or len(tensor) != rows:
                raise InputError(
                    f"each {kind} of the model in trial.export must have the batch as its first dimension; "
                    f"{name!r} has the shape {tuple(tensor.shape)} for {pluralize(rows, 'inputs')}"
                )
    first = next(iter(outputs.values()))
    if exported.labels and first.shape[-1] != len(exported.labels):
        raise InputError(
            f"trial.export has {len(exported.labels)} labels, but the last axis of {next(iter(outputs))!r} "
            f"has {first.shape[-1]} values"
        )
    return Deployment(
        module=module,
        inputs=inputs,
        outputs=[f"{name}_output" if name in inputs else name for name in outputs],
        labels=exported.labels,
    )


def name_inputs(model: nn.Module, example: Example) -> dict[str, Tensor]:
    """Return the inputs of a model by the names of its arguments. Raises InputError if one is no tensor."""
    positional, keywords = arguments(example)
    parameters = inspect.signature(model.forward).parameters.values()
    known = [each.name for each in parameters if each.kind is not each.VAR_POSITIONAL]
    names = [*known, *(f"input{i}" for i in range(len(known) + 1, len(positional) + 1))]
    named = {**dict(zip(names, positional, strict=False)), **keywords}
    for name, value in named.items():
        if not isinstance(value, Tensor):
            raise InputError(
                f"the model in trial.export must take tensors; its argument {name!r} is a "
                f"{type(value).__name__}. Export a module that makes it from tensors"
            )
    return named


def name_outputs(outputs: Any) -> dict[str, Tensor]:
    """Return the tensors that a model returns, by their keys, or else as `output`, or `output1` and so on."""
    if isinstance(outputs, Tensor):
        return {"output": outputs}
    if isinstance(outputs, Mapping):
        return {str(name): value for name, value in outputs.items() if isinstance(value, Tensor)}
    tensors = [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor)]
    return {f"output{i}": tensor for i, tensor in zip(count(1), tensors, strict=False)}


def add_noise(example: Example) -> Example:
    """Return an example whose inputs differ. Zeros become normal noise, and whole numbers stay."""
    generator = torch.Generator().manual_seed(0)

    def change(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        noise = torch.randn(tensor.shape, generator=generator).to(tensor)
        return tensor * (1 + NOISE * noise) if tensor.any() else noise

    result: Example = tree_map_only(Tensor, change, example)
    return result

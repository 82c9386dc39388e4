"""The example input that a model is traced with and lazy layers are initialised by; feature maps in outputs.

An example is a tuple of positional arguments, a mapping of keyword arguments, or a single input: a tensor, or
a list of images for a detector.

An output is the feature map itself, or begins with it: an LSTM returns its sequence of outputs and then its
last states, and a multi-head attention its output and then its weights. A mapping, as a feature pyramid
returns it, has no feature map in this sense. While torch.fx traces a model, a proxy replaces the tensor.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.fx import Proxy
from torch.nn.parameter import is_lazy

from automl.base.errors import InputError
from backbones.torch_internals import tree_leaves, tree_map_only

Example: TypeAlias = Tensor | list[Any] | tuple[Any, ...] | Mapping[str, Any]


def call(model: nn.Module, example: Example) -> Any:
    """Call `model` with `example`. Wrap a tuple or a mapping that is a single argument as `(argument,)`."""
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


def materialise(model: nn.Module, example: Example) -> None:
    """Initialise lazy layers, such as `nn.LazyLinear`, in place, by a forward pass in evaluation mode.

    Until then an optimiser rejects them, nothing can be counted, and the model cannot be copied. Only the
    shapes of the example matter. Models without lazy layers are not changed. Raises InputError if the model
    cannot process the example, or has lazy layers that the pass does not reach.
    """
    if not _list_lazy(model):
        return
    device = next(model.parameters()).device
    modes = {module: module.training for module in model.modules()}

    def blank(tensor: Tensor) -> Tensor:  # All positions of a mask are real.
        return torch.full_like(tensor, tensor.dtype == torch.bool, device=device)

    model.eval()
    try:
        with torch.no_grad():
            args, kwargs = tree_map_only(Tensor, blank, arguments(example))
            model(*args, **kwargs)
    except Exception as error:  # The model can raise any error.
        raise InputError(
            f"{type(model).__name__} has lazy layers ({', '.join(_list_lazy(model))}), which take their "
            f"shapes from a first pass, and cannot take {describe(example)}: {type(error).__name__}: {error}"
        ) from error
    finally:
        for module, mode in modes.items():
            module.training = mode
    if unreached := _list_lazy(model):
        raise InputError(
            f"{type(model).__name__} does not reach its lazy layers {', '.join(unreached)} in a forward "
            f"pass; remove them, or give them their sizes"
        )


def _list_lazy(model: nn.Module) -> list[str]:
    """Return the paths of layers whose weights have no shape yet."""
    tensors = (*model.named_parameters(), *model.named_buffers())
    return list(dict.fromkeys(name.rpartition(".")[0] for name, tensor in tensors if is_lazy(tensor)))


def feature_map(output: Any) -> Tensor | None:
    """Return the tensor that `output` is or begins with, or None."""
    first = output[0] if isinstance(output, tuple | list) and output else output
    return first if isinstance(first, Tensor | Proxy) else None  # type: ignore[return-value]


def with_feature_map(output: Any, new: Tensor) -> Any:
    """Return `output` with `new` instead of `feature_map(output)`."""
    if isinstance(output, Tensor | Proxy):
        return new
    values = [new, *output[1:]]
    return type(output)(*values) if hasattr(output, "_fields") else type(output)(values)


def logits(output: Any) -> Any:
    """Return the attribute or key `logits` of a classifier's output, or else the output itself."""
    if isinstance(output, Tensor | Proxy):
        return output
    named = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    return output if named is None else named

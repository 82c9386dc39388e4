"""Lazy layers, such as `nn.LazyLinear`, whose weights get their shapes from the first input.

Until then an optimiser cannot take them, nothing can be counted, and the model cannot be copied.
"""

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from attention import InputError
from backbones.example import Example, arguments, describe
from backbones.torch_internals import tree_map_only


def materialise(model: nn.Module, example: Example) -> None:
    """Give lazy layers their weights, in place, by a forward pass in evaluation mode.

    example: as for `sites`; only its shapes matter. Models without lazy layers are left alone.
    Raises InputError for a model that cannot take the example, and for layers that it does not reach.
    """
    if not _lazy(model):
        return
    device = next(model.parameters()).device
    modes = {module: module.training for module in model.modules()}

    def blank(tensor: Tensor) -> Tensor:  # of a mask, all positions are real
        return torch.full_like(tensor, tensor.dtype == torch.bool, device=device)

    model.eval()
    try:
        with torch.no_grad():
            args, kwargs = tree_map_only(Tensor, blank, arguments(example))
            model(*args, **kwargs)
    except Exception as error:  # whatever the model raises
        raise InputError(
            f"{type(model).__name__} has lazy layers ({', '.join(_lazy(model))}), which take their shapes "
            f"from a first pass, and cannot take {describe(example)}: {type(error).__name__}: {error}"
        ) from error
    finally:
        for module, mode in modes.items():
            module.training = mode
    if left := _lazy(model):
        raise InputError(
            f"{type(model).__name__} does not reach its lazy layers {', '.join(left)} in a forward pass; "
            f"remove them, or give them their sizes"
        )


def _lazy(model: nn.Module) -> list[str]:
    """The paths of layers whose weights have no shape yet."""
    tensors = (*model.named_parameters(), *model.named_buffers())
    return list(dict.fromkeys(name.rpartition(".")[0] for name, tensor in tensors if is_lazy(tensor)))

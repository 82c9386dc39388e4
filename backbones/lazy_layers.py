"""Lazy layers, such as `nn.LazyLinear`, whose weights get their shapes from the first input.

Until then an optimiser rejects them, nothing can be counted, and the model cannot be copied.
"""

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from automl.base.errors import InputError
from backbones.example import Example, arguments, describe
from backbones.torch_internals import tree_map_only


def materialise(model: nn.Module, example: Example) -> None:
    """Initialise lazy layers, in place, by a forward pass in evaluation mode.

    Models without lazy layers are not changed.

    Args:
        model: The model.
        example: An input, as for `sites`. Only its shapes matter.

    Raises:
        InputError: The model cannot process the example, or has lazy layers that the pass does not reach.
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

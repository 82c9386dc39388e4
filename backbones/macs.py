"""Multiply-adds of a forward pass, including those of recurrent layers.

torch's counter counts operations. A recurrent layer is one operation without a formula, or many small ones of
which it knows some. So its count inside such a layer is subtracted, and the layer's own formula is added. A
transformer's fused evaluation path is also one unknown operation, so the counter runs the other path, which
computes the same.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.hooks import RemovableHandle

from backbones.example import Example, call

GATES: Mapping[type[nn.Module], int] = {nn.LSTM: 4, nn.GRU: 3}


def count_recurrent_macs(module: nn.LSTM | nn.GRU, x: Tensor | PackedSequence) -> int:
    """Count the multiply-adds of a recurrent layer.

    Each gate of each direction has a map of the layer's input and one of its own last output.
    """
    data = x.data if isinstance(x, PackedSequence) else x
    steps = data.shape[:-1].numel()  # (T, B, C), (B, T, C), (T, C), or packed (T, C)
    directions = 2 if module.bidirectional else 1
    hidden = module.hidden_size
    output = getattr(module, "proj_size", 0) or hidden
    total = 0
    for layer in range(module.num_layers):
        inputs = directions * output if layer else module.input_size
        total += directions * GATES[_kind(module)] * hidden * (inputs + output)
        total += directions * hidden * output if output != hidden else 0
    return steps * total


FORMULAS: Mapping[type[nn.Module], Callable[[Any, Any], int]] = {
    nn.LSTM: count_recurrent_macs,
    nn.GRU: count_recurrent_macs,
}


def _formula(module: nn.Module) -> Any:
    """Return the formula of a layer, or its own `count_macs`. None if the counter knows its operations."""
    kind = _kind(module)
    return FORMULAS.get(kind) or getattr(kind, "count_macs", None)


def count_macs(model: nn.Module, example: Example) -> int:
    """Count the multiply-adds of a forward pass: matrix products, convolutions, attention and recurrences."""
    fast = torch.backends.mha.get_fastpath_enabled()
    correction = 0  # counts by formulas minus the counter's own counts in the same layers
    before: list[int] = []

    def entering(module: nn.Module, args: tuple[Any, ...]) -> None:
        before.append(counter.get_total_flops() // 2)

    def leaving(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        nonlocal correction
        seen = counter.get_total_flops() // 2 - before.pop()
        correction += _formula(module)(module, args[0]) - seen

    handles: list[RemovableHandle] = []
    for module in model.modules():
        if _formula(module) is not None:
            handles += [module.register_forward_pre_hook(entering), module.register_forward_hook(leaving)]
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        # Counting fails with parametrised weights in inference mode.
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            call(model, example)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for handle in handles:
            handle.remove()
    return int(counter.get_total_flops()) // 2 + correction


def _kind(module: nn.Module) -> type[nn.Module]:
    """Return the type that has a formula, if the module's type is it or a subclass."""
    return next((kind for kind in FORMULAS if isinstance(module, kind)), type(module))

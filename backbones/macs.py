"""Multiply-adds of a forward pass, those of recurrent layers among them.

torch's counter sees operations. A recurrent layer is one operation that it has no formula for, or many small
ones of which it knows some; so what it saw inside of such a layer is taken back, and the layer's own formula
counts. A transformer's fused evaluation path is one unknown operation as well; the counter is shown the other
path, which computes the same.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.hooks import RemovableHandle

from backbones import larnn
from backbones.example import Example, call

GATES: Mapping[type[nn.Module], int] = {nn.LSTM: 4, nn.GRU: 3}


def recurrent(module: nn.LSTM | nn.GRU, x: Tensor | PackedSequence) -> int:
    """Each gate of each direction is a map of the layer's input and one of its own last output."""
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
    nn.LSTM: recurrent,
    nn.GRU: recurrent,
    larnn.Layer: larnn.macs,
}


def count_macs(model: nn.Module, example: Example) -> int:
    """Multiply-adds of a forward pass: matrix products, convolutions, attention and recurrences."""
    fast = torch.backends.mha.get_fastpath_enabled()
    instead = 0  # by formulas, less what the counter saw there
    before: list[int] = []

    def entering(module: nn.Module, args: tuple[Any, ...]) -> None:
        before.append(counter.get_total_flops() // 2)

    def leaving(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        nonlocal instead
        seen = counter.get_total_flops() // 2 - before.pop()
        instead += FORMULAS[_kind(module)](module, args[0]) - seen

    handles: list[RemovableHandle] = []
    for module in model.modules():
        if _kind(module) in FORMULAS:
            handles += [module.register_forward_pre_hook(entering), module.register_forward_hook(leaving)]
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        # The counter and parametrised weights do not go together in inference mode.
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            call(model, example)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for handle in handles:
            handle.remove()
    return int(counter.get_total_flops()) // 2 + instead


def _kind(module: nn.Module) -> type[nn.Module]:
    """The type that there is a formula for, be the module of a subclass of it."""
    return next((kind for kind in FORMULAS if isinstance(module, kind)), type(module))

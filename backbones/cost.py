"""The cost of models and attention modules: multiply-adds, parameters and memory.

torch's counter counts operations. A recurrent layer is one operation without a formula, or many small ones of
which it knows some. So its count inside such a layer is subtracted, and the layer's own formula is added. A
transformer's fused evaluation path is also one unknown operation, so the counter runs the other path, which
computes the same.
"""

import copy
import json
from collections.abc import Mapping
from contextlib import ExitStack
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils.flop_counter import FlopCounterMode

from attention import Cost, Gated, Spec, find_attention
from automl.base.errors import InputError, describe_error
from backbones.example import Example, call
from backbones.insertion import build_module
from backbones.site import Site, features
from backbones.torch_internals import FakeCopyMode, FakeTensorMode
from backbones.trace import plain_transformers

GATES: Mapping[type[nn.Module], int] = {nn.LSTM: 4, nn.GRU: 3}


def count_recurrent_macs(module: nn.LSTM | nn.GRU, x: Tensor | PackedSequence) -> int:
    """Count the multiply-adds of a recurrent layer: each gate maps its input and its own last output."""
    data = x.data if isinstance(x, PackedSequence) else x
    steps = data.shape[:-1].numel()  # (T, B, C), (B, T, C), (T, C), or packed (T, C)
    directions = 2 if module.bidirectional else 1
    hidden, gates = module.hidden_size, next(n for kind, n in GATES.items() if isinstance(module, kind))
    output = getattr(module, "proj_size", 0) or hidden
    total = 0
    for layer in range(module.num_layers):
        inputs = directions * output if layer else module.input_size
        total += directions * gates * hidden * (inputs + output)
        total += directions * hidden * output if output != hidden else 0
    return steps * total


def _formula(module: nn.Module) -> Any:
    """Return the formula of a layer, or its own `count_macs`. None if the counter knows its operations."""
    is_recurrent = isinstance(module, tuple(GATES))
    return count_recurrent_macs if is_recurrent else getattr(type(module), "count_macs", None)


def count_macs(model: nn.Module, example: Example) -> int:
    """Count the multiply-adds of a forward pass: matrix products, convolutions, attention and recurrences."""
    correction = 0  # counts by formulas minus the counter's own counts in the same layers
    before: list[int] = []

    def entering(module: nn.Module, args: tuple[Any, ...]) -> None:
        before.append(counter.get_total_flops() // 2)

    def leaving(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        nonlocal correction
        seen = counter.get_total_flops() // 2 - before.pop()
        correction += _formula(module)(module, args[0]) - seen

    # Counting fails with parametrised weights in inference mode.
    with (
        ExitStack() as hooks,
        plain_transformers(),
        torch.no_grad(),
        FlopCounterMode(display=False) as counter,
    ):
        for module in model.modules():
            if _formula(module) is not None:
                hooks.enter_context(module.register_forward_pre_hook(entering))
                hooks.enter_context(module.register_forward_hook(leaving))
        call(model, example)
    return int(counter.get_total_flops()) // 2 + correction


def attention_cost(spec: Spec, site: Site) -> Cost:
    """Return a module's parameters, and MACs and memory for one example, or raise InputError."""
    formula = find_attention(spec.type).cost
    if formula is None:
        return count_cost(spec, site)
    return formula(site.channels, site.spatial, **spec.options)


def count_cost(spec: Spec, site: Site) -> Cost:
    """Count what `attention_cost` returns, without a formula.

    The module runs on fake tensors, which have no values. Memory is the difference between batches of three
    examples and of two, without values that do not depend on the batch, such as normalised weights.
    """
    return _count(json.dumps(spec.to_json()), site)


@lru_cache(maxsize=256)
def _count(text: str, site: Site) -> Cost:
    spec = Spec.from_json(json.loads(text))
    with torch.random.fork_rng(devices=[]):
        module = build_module(spec, site)
    try:
        return count_module_cost(module, site)
    except Exception as error:  # Somebody else wrote the module.
        raise InputError(f"{spec} at site {site.name!r} fails: {describe_error(error)}") from error


def count_module_cost(module: Gated, site: Site) -> Cost:
    """Count what `attention_cost` returns, of a module that was built for a site. It does not change."""
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with FakeCopyMode(fake):
        twin = copy.deepcopy(module)
    with fake:
        kept = [_count_kept(twin.train(), features(site, batch)) for batch in (2, 3)]
        macs = count_macs(twin.eval(), features(site, 1))
    parameters = sum(p.numel() for p in module.parameters())
    return Cost(parameters=parameters, macs=macs, memory=kept[1] - kept[0])


def _count_kept(module: Gated, x: Tensor) -> int:
    """Count the values that are kept for the backward pass, except the input and the module's own."""
    storages = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage] = storage.nbytes() // tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        module(x.requires_grad_())
    own = {tensor.untyped_storage() for tensor in (x, *module.parameters(), *module.buffers())}
    return sum(count for storage, count in storages.items() if storage not in own)

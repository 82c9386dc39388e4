"""Compare each attention with its reference: time and peak extra memory of forward and backward.

The references are fastai's modules if fastai is installed, the formula with its N x N matrix, and
`torch.nn.MultiheadAttention`. Both sides have the same weights, and their outputs are compared first.
"""

import statistics
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

import torch
import torch.nn.functional as F
from harness import Row, compare, milliseconds, peak_memory, seconds, show, write
from torch import Tensor, nn

from attention import Gated, Spec
from attention.options import OptionValue
from attention.ssa import resolve_order
from automl.config.device import find_device, is_gpu
from automl.training.clock import time_in_turn

DEVICE = find_device()
BATCH = 4
ON_GPU = is_gpu(DEVICE)
SIDES = (16, 32, 64, 128) if ON_GPU else (16, 32, 64)
CHANNELS = (64, 128, 256, 512)
ROUNDS = 7 if ON_GPU else 3
# Larger cases are skipped: on a CPU an N x N matrix per batch takes too long.
MOST = 2**36 if ON_GPU else 2**32


def explicit_sagan(module: Any, x: Tensor) -> Tensor:
    tokens = x.flatten(2).mT
    f, g, h = module.f(tokens), module.g(tokens), module.h(tokens)
    weights = F.softmax(g @ f.mT, dim=-1)  # (B, N, N)
    attended: Tensor = x + module.gamma * (weights @ h).mT.view_as(x)
    return attended


def explicit_decomposed(module: Any, x: Tensor) -> Tensor:
    """Return dot-product attention scaled by N, which the decomposed one with scaling must equal."""
    tokens = x.flatten(2).mT
    q, k, v = module.query(tokens), module.key(tokens), module.value(tokens)
    weights = q @ k.mT / x.shape[2:].numel()  # (B, N, N)
    return x + module.gamma * module.reprojection(weights @ v).mT.view_as(x)


def torch_multihead(module: Any, x: Tensor) -> Tensor:
    if not hasattr(module, "peer"):
        channels = module.channels
        peer = nn.MultiheadAttention(channels, module.heads, batch_first=True, device=x.device)
        peer.load_state_dict(
            {
                "in_proj_weight": module.in_proj.weight,
                "in_proj_bias": module.in_proj.bias,
                "out_proj.weight": module.out_proj.weight,
                "out_proj.bias": module.out_proj.bias,
            }
        )
        object.__setattr__(module, "peer", peer)
    tokens = x.flatten(2).mT
    update, _ = module.peer(tokens, tokens, tokens, need_weights=False)
    return x + module.gamma * update.mT.view_as(x)


def fastai_peer(name: str, module: Any) -> Callable[[Tensor], Tensor] | None:
    """Return fastai's module with the weights of `module`, or None if fastai is not installed."""
    try:
        from fastai import layers
    except ImportError:
        return None
    if name == "ssa":
        peer = layers.SimpleSelfAttention(module.channels, ks=1)
        pairs = [(peer.conv, module.conv)]
    else:
        peer = layers.SelfAttention(module.channels)
        pairs = [(peer.query[0], module.f), (peer.key[0], module.g), (peer.value[0], module.h)]
    for theirs, ours in pairs:
        spectral = ours.parametrizations.weight
        theirs.weight_orig.data = spectral.original.data.view_as(theirs.weight_orig).clone()
        theirs.weight_u, theirs.weight_v = spectral[0]._u.clone(), spectral[0]._v.clone()
    peer.gamma.data.copy_(module.gamma.data)
    return peer.to(DEVICE)


def make_peers(name: str, module: Gated) -> dict[str, Callable[[Tensor], Tensor]]:
    calls: dict[str, Callable[[Tensor], Tensor] | None] = {}
    if name in ("ssa", "sagan"):
        calls["fastai"] = fastai_peer(name, module)
    if name == "sagan":
        calls["explicit N x N"] = partial(explicit_sagan, module)
    if name == "decomposed":
        calls["explicit N x N"] = partial(explicit_decomposed, module)
    if name == "multihead":
        calls["torch.nn.MultiheadAttention"] = partial(torch_multihead, module)
    return {peer: call for peer, call in calls.items() if call is not None}


def step(call: Callable[[Tensor], Tensor], x: Tensor, direction: Tensor) -> None:
    x.grad = None
    call(x).backward(direction)


def make_module(name: str, channels: int, **options: OptionValue) -> Gated:
    torch.manual_seed(0)
    module = Spec(name, options).build(channels).to(DEVICE)
    nn.init.ones_(module.gamma)
    return module


def check_equal(ours: nn.Module, theirs: Callable[[Tensor], Tensor], x: Tensor) -> None:
    ours.eval()
    if isinstance(theirs, nn.Module):
        theirs.eval()
    with torch.no_grad():
        a, b = ours(x), theirs(x)
    torch.testing.assert_close(a, b, rtol=2e-3, atol=2e-3 * float(b.abs().max()))
    ours.train()
    if isinstance(theirs, nn.Module):
        theirs.train()


def compare_types() -> list[Row]:
    rows = []
    for name, options in (
        ("ssa", {}),
        ("sagan", {}),
        ("decomposed", {"normalisation": "scaling"}),
        ("multihead", {"heads": 4}),
    ):
        for side in SIDES:
            for channels in CHANNELS:
                positions = side * side
                if BATCH * positions * positions * channels > MOST:
                    continue
                module = make_module(name, channels, **options)
                x = torch.randn(BATCH, channels, side, side, device=DEVICE, requires_grad=True)
                direction = torch.randn_like(x)
                for peer, call in make_peers(name, module).items():
                    check_equal(module, call, x)
                    ours, theirs = (partial(step, c, x, direction) for c in (module, call))
                    ours()
                    repeat = max(1, int(0.05 / max(seconds(ours, DEVICE), 1e-5)))
                    case = f"{name} N={positions} C={channels}"
                    rows.append(
                        compare(
                            f"{case} time",
                            peer,
                            partial(milliseconds, ours, DEVICE, repeat),
                            partial(milliseconds, theirs, DEVICE, repeat),
                            unit="ms",
                            rounds=ROUNDS,
                            higher_is_better=False,
                        )
                    )
                    if positions >= 1024:  # below that, a CPU's peak is the allocator's noise
                        rows.append(
                            compare(
                                f"{case} memory",
                                peer,
                                partial(peak_memory, ours, DEVICE),
                                partial(peak_memory, theirs, DEVICE),
                                unit="MiB",
                                rounds=3,
                                higher_is_better=False,
                            )
                        )
    return rows


def compare_orders() -> list[Row]:
    """Compare `order=auto` with the better of the two orders, over the grid."""
    rows = []
    for side in SIDES:
        for channels in CHANNELS:
            positions = side * side
            if BATCH * positions * positions * channels > MOST:
                continue
            x = torch.randn(BATCH, channels, side, side, device=DEVICE, requires_grad=True)
            direction = torch.randn_like(x)
            calls = {
                order: partial(step, make_module("ssa", channels, order=order), x, direction)
                for order in ("auto", "xxt-first", "conv-first")
            }
            calls["auto"]()
            repeat = max(1, int(0.1 / max(seconds(calls["auto"], DEVICE), 1e-5)))
            timings = [partial(milliseconds, call, DEVICE, repeat) for call in calls.values()]
            rounds = list(islice(time_in_turn(timings), 2 * ROUNDS + 1))
            times = dict(zip(calls, zip(*rounds, strict=True), strict=True))
            median = {order: statistics.median(values) for order, values in times.items()}
            better = min(("xxt-first", "conv-first"), key=median.__getitem__)
            ratios = [b / a for a, b in zip(times["auto"], times[better], strict=True)]
            row = Row(
                case=f"ssa order=auto ({resolve_order('auto', channels=channels, positions=positions)}) "
                f"N={positions} C={channels}",
                peer=f"the better order, {better}",
                ours=median["auto"],
                theirs=median[better],
                unit="ms",
                spread=(min(ratios), max(ratios)),
                ratio=statistics.median(ratios),
            )
            show(row)
            rows.append(row)
    return rows


if __name__ == "__main__":
    write("attention", compare_types() + compare_orders())

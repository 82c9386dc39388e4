"""Compare causal attention of linear cost with the weights of all pairs, from 512 to 8,192 tokens.

Time and memory are of a forward and a backward pass of one sequence. The explicit forms compute the same
functions with N x N weights; where each channel decays at its own rate, the weights of all pairs would fill
the memory, so `kda` has no explicit form. torch's causal attention keeps no such weights on a CPU from 2,048
tokens, so it is compared by time only. The first rows compare the cost of a token in a long and in a short
sequence.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from harness import Row, compare, milliseconds, peak_memory, write
from torch import Tensor, nn

from attention import Gated, Spec
from automl.config.device import find_device

DEVICE = find_device()
CHANNELS, HEADS, WINDOW = 64, 4, 128
LENGTHS = (512, 1024, 2048, 4096, 8192)
ROUNDS = 5
OPTIONS = {"sliding": {"window": WINDOW}}


def make(name: str) -> Gated:
    torch.manual_seed(0)
    module = Spec(name, {"heads": HEADS, "causal": True, **OPTIONS.get(name, {})}).build(CHANNELS).to(DEVICE)
    nn.init.ones_(module.gamma)
    module.layout = "B*C"
    return module


def _split(x: Tensor) -> Tensor:
    return x.unflatten(2, (HEADS, -1)).transpose(1, 2)  # (B, heads, N, d)


def _join(x: Tensor, values: Tensor, reprojection: nn.Module) -> Tensor:
    update: Tensor = reprojection(values.transpose(1, 2).flatten(2))
    return x + update


def explicit_decomposed(module: Any, x: Tensor) -> Tensor:
    """Compute the weights from sums that are scaled by the largest key, which suffices for small keys."""
    q, k, v = (_split(layer(x)) for layer in (module.query, module.key, module.value))
    keys = (k - k.amax(-2, keepdim=True)).exp()
    weights = (q.softmax(-1) / keys.cumsum(-2)) @ keys.mT  # (B, heads, N, N)
    return _join(x, weights.tril() @ v, module.reprojection)


def explicit_linear(module: Any, x: Tensor) -> Tensor:
    q, k, v = map(_split, module.in_proj(x).chunk(3, dim=2))
    weights = ((F.elu(q) + 1) @ (F.elu(k) + 1).mT).tril()
    return _join(x, weights / weights.sum(-1, keepdim=True) @ v, module.out_proj)


def explicit_sliding(module: Any, x: Tensor) -> Tensor:
    q, k, v = map(_split, module.in_proj(x).chunk(3, dim=2))
    near = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril().triu(1 - WINDOW)
    weights = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~near, float("-inf")).softmax(-1)
    return _join(x, weights @ v, module.out_proj)


def explicit_gated_delta(module: Any, x: Tensor) -> Tensor:
    """Solve the system of all positions at once."""
    signal = F.pad(module.in_proj_qkv(x), (0, 0, module.kernel - 1, 0))
    q, k, v, decay, beta = module._inputs(x, signal)
    total, N = decay.cumsum(-2), x.shape[1]
    later = torch.ones(N, N, dtype=torch.bool, device=x.device).triu(1)
    decays = (total - total.mT).masked_fill(later, float("-inf")).exp()
    system = beta * (k @ k.mT) * decays
    added = torch.linalg.solve_triangular(system, v * beta, upper=False, unitriangular=True)
    return x + module._output(x, (q @ k.mT * decays) @ added)


EXPLICIT = {
    "decomposed": explicit_decomposed,
    "linear": explicit_linear,
    "sliding": explicit_sliding,
    "gated-delta": explicit_gated_delta,
}
NAMES = (*EXPLICIT, "kda")


def step(call: Callable[[Tensor], Tensor], x: Tensor) -> None:
    x.grad = None
    call(x).sum().backward()


def compare_with_pairs(name: str, length: int) -> list[Row]:
    """Compare with the explicit form, and with torch's causal attention."""
    x = torch.randn(1, length, CHANNELS, device=DEVICE, requires_grad=True)
    module, repeat = make(name), max(1, 2048 // length)
    case = f"causal {name} N={length}"
    time = partial(compare, unit="ms", rounds=ROUNDS if length < LENGTHS[-1] else 3, higher_is_better=False)
    memory = partial(compare, unit="MiB", rounds=3 if length < LENGTHS[-1] else 1, higher_is_better=False)
    ours, kernel = partial(step, module, x), partial(step, make("multihead"), x)

    def clock(call: Callable[[], None]) -> Callable[[], float]:
        return partial(milliseconds, call, DEVICE, repeat)

    rows = [time(f"{case} time", "scaled_dot_product_attention", clock(ours), clock(kernel))]
    if name not in EXPLICIT:
        return rows
    explicit = partial(EXPLICIT[name], module)
    with torch.no_grad():
        torch.testing.assert_close(module(x), explicit(x), rtol=1e-3, atol=1e-4)
    theirs, peer = partial(step, explicit, x), "weights of all pairs"
    measured = partial(peak_memory, ours, DEVICE), partial(peak_memory, theirs, DEVICE)
    return [
        time(f"{case} time", peer, clock(ours), clock(theirs)),
        *rows,
        memory(f"{case} memory", peer, *measured),
    ]


def compare_lengths(name: str) -> list[Row]:
    """Compare the cost of a token at 8,192 tokens with that at 2,048. A ratio of 1 is linear growth."""
    module = make(name)
    costs = {}
    for length in (2048, 8192):
        x = torch.randn(1, length, CHANNELS, device=DEVICE, requires_grad=True)
        call = partial(step, module, x)
        call()
        costs[length] = (
            lambda call=call, length=length: 1e3 * milliseconds(call, DEVICE, 8192 // length) / length,
            lambda call=call, length=length: 1024 * peak_memory(call, DEVICE) / length,
        )
    return [
        compare(
            f"causal {name} {what} of a token, N=8192",
            "N=2048",
            costs[8192][i],
            costs[2048][i],
            unit=unit,
            rounds=ROUNDS,
            higher_is_better=False,
        )
        for i, (what, unit) in enumerate([("time", "us"), ("memory", "KiB")])
    ]


def main() -> None:
    rows = [row for name in NAMES for row in compare_lengths(name)]
    rows += [row for name in NAMES for length in LENGTHS for row in compare_with_pairs(name, length)]
    write("causal", rows)


if __name__ == "__main__":
    main()

"""Causal attention compared with its formulas, written for each pair, and no leak of later positions."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from attention import Gated, Spec
from attention.gated_delta import KimiDeltaAttention, delta_rule, next_delta
from attention.prefix_sums import CHUNK, causal_softmax_sums, causal_sums
from tests.helpers.attention_cases import CAUSAL, CHANNELS, every_causal, features, new

# In a chunk, at its end, and over several chunks.
lengths = pytest.mark.parametrize("length", [1, CHUNK - 1, CHUNK, CHUNK + 1, 5 * CHUNK // 2, 4 * CHUNK])


def _softmax_of_pairs(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    N = q.shape[-2]
    later = ~torch.ones(N, N, dtype=torch.bool).tril()[..., None]
    keys = k.unsqueeze(-3).expand(*k.shape[:-2], N, N, -1).masked_fill(later, float("-inf")).softmax(-2)
    return torch.einsum("bhic,bhijc->bhij", q, keys) @ v


def _products_of_pairs(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).tril() @ v


@pytest.mark.parametrize("scale", [1, 100])
@pytest.mark.parametrize(
    ("sums", "of_pairs"),
    [(causal_softmax_sums, _softmax_of_pairs), (causal_sums, _products_of_pairs)],
    ids=["softmax", "products"],
)
@lengths
def test_sums_equal_those_over_all_pairs(sums, of_pairs, length: int, scale: int) -> None:  # type: ignore[no-untyped-def]
    """Values and gradients to 1e-10, also where the keys differ by hundreds."""
    q, k, v = features(3, 2, 2, length, 5, dtype=torch.float64).unbind()
    inputs = [t.requires_grad_() for t in (q.softmax(-1).detach(), k * scale, v)]
    outputs = [f(*inputs) for f in (sums, of_pairs)]
    gradient = features(*outputs[0].shape, dtype=torch.float64).cos()
    results = [(y, *torch.autograd.grad(y, inputs, gradient)) for y in outputs]
    for result, expected in zip(*results, strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@every_causal
def test_earlier_positions_are_equal_bit_by_bit(spec: Spec, dtype: torch.dtype) -> None:
    module, x = new(spec, gate=1).to(dtype).eval(), features(2, CHANNELS, 100, dtype=dtype)
    y = module(x)
    for position in (99, 50, 1):
        changed = x.clone()
        changed[:, :, position] += 30
        z = module(changed)
        assert torch.equal(z[:, :, :position], y[:, :, :position])
        assert not torch.equal(
            z[:, :, position] - changed[:, :, position], y[:, :, position] - x[:, :, position]
        )


@pytest.mark.parametrize("half", [None, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rate", [0.0, 30.0])
@pytest.mark.parametrize("same", [0.0, 1.0])
def test_the_delta_rule_is_precise_in_float32(same: float, rate: float, half: torch.dtype | None) -> None:
    """Also of equal keys, whose system has large powers, of fast decays, and under autocast."""
    q, k, v = features(3, 1, 2, 500, 16).unbind()
    k = nn.functional.normalize(same * k[:, :, :1] + (1 - same) * k, dim=-1)
    beta = features(1, 2, 500, 1).mul(3).sigmoid()
    inputs = [t.requires_grad_() for t in (q, k, v, -rate * beta.flip(2), beta)]
    with torch.autocast("cpu", half, enabled=half is not None):
        y, state = delta_rule(*inputs)
    gradients = torch.autograd.grad(y.sum(), inputs)
    exact = [t.detach().double().requires_grad_() for t in inputs]
    expected = torch.zeros(1, 2, 16, 16, dtype=torch.float64)
    rows = []
    for i in range(500):
        row, expected = next_delta(expected, *(t[:, :, i : i + 1] for t in exact))
        rows.append(row)
    assert (y - torch.cat(rows, dim=2)).norm() < 1e-5 * torch.cat(rows, dim=2).norm()
    assert (state - expected).norm() < 1e-5 * expected.norm()
    for gradient, target in zip(
        gradients, torch.autograd.grad(torch.cat(rows, dim=2).sum(), exact), strict=True
    ):
        assert (gradient - target).norm() < 1e-4 * target.norm()


N = 70


def _split(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)  # (B, heads, N, d)


def _heads(module: Gated, x: Tensor) -> list[Tensor]:
    q, k, v = module.in_proj(x).chunk(3, dim=-1)
    if (norm := getattr(module, "norm", "none")) != "none":
        q, k = (_normalise(t, m.weight, norm) for t, m in ((q, module.norms.query), (k, module.norms.key)))
    return [_split(part, module.heads) for part in (q, k, v)]


def _normalise(x: Tensor, weight: Tensor, norm: str) -> Tensor:
    groups = x.unflatten(-1, (-1, len(weight)))  # the heads, or all of them as one
    assert groups.shape[-2] == 1 or norm == "head"
    return (groups * (groups.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight).flatten(-2)


def _turn(x: Tensor, base: float) -> Tensor:
    """Return channels c and c + d / 2 as a complex number, turned by an angle for each position."""
    first, second = x.chunk(2, dim=-1)
    rates = base ** (-torch.arange(first.shape[-1], dtype=x.dtype) / first.shape[-1])
    turned = torch.complex(first, second) * torch.exp(1j * torch.arange(N)[:, None] * rates)
    return torch.cat([turned.real, turned.imag], dim=-1)


def _softmax_attention(module: Gated, x: Tensor) -> Tensor:
    q, k, v = _heads(module, x)
    if module.encoding == "absolute":
        half = CHANNELS // 2
        angles = torch.arange(N)[:, None] * 10_000.0 ** (-torch.arange(half, dtype=x.dtype) / half)
        q, k, _ = _heads(module, x + torch.cat([angles.sin(), angles.cos()], dim=1))
    elif module.encoding == "rotary":
        base = getattr(module, "base", 10_000.0)
        q, k = _turn(q, base), _turn(k, base)
    window = getattr(module, "window", 2 * N)
    after = 0 if module.causal else (window - 1) // 2
    offset = torch.arange(N) - torch.arange(N)[:, None]
    visible = (offset <= after) & (offset > after - window)
    logits = q @ k.mT / q.shape[-1] ** 0.5 + (module.bias([N]) if module.encoding == "relative" else 0)
    mixed = logits.masked_fill(~visible, float("-inf")).softmax(-1) @ v
    return module.out_proj(mixed.transpose(1, 2).flatten(2))


def _linear_attention(module: Gated, x: Tensor) -> Tensor:
    q, k, v = _heads(module, x)
    weights = (nn.functional.elu(q) + 1) @ (nn.functional.elu(k) + 1).mT
    weights = weights.tril() if module.causal else weights
    return module.out_proj((weights / weights.sum(-1, keepdim=True) @ v).transpose(1, 2).flatten(2))


def _decomposed_attention(module: Gated, x: Tensor) -> Tensor:
    q, k, v = (_split(layer(x), module.heads) for layer in (module.query, module.key, module.value))
    mixed = []
    for i in range(N):
        q_i, k_i = q[:, :, i : i + 1], k[:, :, : i + 1]
        if module.normalisation == "softmax":
            q_i, k_i = q_i.softmax(-1), k_i.softmax(-2)
        divisor = {"scaling": i + 1, "scaling-keys": q.shape[-1] ** 0.5}.get(module.normalisation, 1)
        mixed.append(q_i @ k_i.mT / divisor @ v[:, :, : i + 1])
    return module.reprojection(torch.cat(mixed, dim=2).transpose(1, 2).flatten(2))


def _short_convolution(module: Gated, x: Tensor) -> Tensor:
    b, c, u = module.in_proj(x).chunk(3, dim=-1)
    last = 0 if module.causal else (module.kernel - 1) // 2
    taps = {i - module.kernel + 1 + last: module.conv.weight[:, 0, i] for i in range(module.kernel)}
    rows = [
        sum(b[:, n + at] * u[:, n + at] * tap for at, tap in taps.items() if 0 <= n + at < N)
        for n in range(N)
    ]
    return module.out_proj(c * torch.stack(rows, dim=1))


def _gated_delta(module: Gated, x: Tensor) -> Tensor:
    """Compute equation 10 of arXiv 2412.06464, one position after another, after the convolution.

    With decays of channels it is equation 1 of arXiv 2510.26692.
    """
    heads, by_channel = module.heads, isinstance(module, KimiDeltaAttention)
    taps, last = module.conv1d.weight[:, 0], 0 if module.causal else (module.kernel - 1) // 2
    padded = nn.functional.pad(module.in_proj_qkv(x), (0, 0, module.kernel - 1 - last, last))
    signal = sum(padded[:, i : i + N] * taps[:, i] for i in range(module.kernel))
    q, k, v = (_split(part, heads) for part in (signal * signal.sigmoid()).chunk(3, dim=-1))
    q, k = (t / (t.square().sum(-1, keepdim=True) + 1e-6).sqrt() for t in (q, k))
    beta = 1 / (1 + (-module.in_proj_b(x)).exp())  # (B, N, heads)
    time = (1 + (module.in_proj_a(x) + module.dt_bias).exp()).log().unflatten(-1, (heads, -1))
    alpha = (-module.A_log.exp()[:, None] * time).exp()  # (B, N, heads, 1) or (B, N, heads, d)
    mixed = torch.zeros_like(v)
    for order in (range(N), *([] if module.causal else [reversed(range(N))])):
        state, rows = x.new_zeros(len(x), heads, v.shape[-1], v.shape[-1]), [x.new_zeros(0)] * N
        for i in order:
            b, a = beta[:, i, :, None, None], alpha[:, i, :, :, None]
            key, value = k[:, :, i, :, None], v[:, :, i, None]  # a column and a row
            erased = torch.eye(v.shape[-1], dtype=x.dtype) - b * key @ key.mT
            state = erased @ (a * state) + b * key @ value
            rows[i] = (q[:, :, i, None] @ state).squeeze(2) / v.shape[-1] ** 0.5
        mixed = mixed + torch.stack(rows, dim=2)
    mixed = mixed / (mixed.square().mean(-1, keepdim=True) + 1e-6).sqrt() * module.norm.weight
    gate = module.in_proj_z(x)
    factors = gate.sigmoid() if by_channel else gate * gate.sigmoid()
    return module.out_proj(mixed.transpose(1, 2).flatten(2) * factors)


FORMULAS: dict[str, Callable[[Gated, Tensor], Tensor]] = {
    "multihead": _softmax_attention,
    "sliding": _softmax_attention,
    "linear": _linear_attention,
    "decomposed": _decomposed_attention,
    "shortconv": _short_convolution,
    "gated-delta": _gated_delta,
    "kda": _gated_delta,
}
OTHERS = [
    Spec("sliding", {"window": 4}),
    Spec("sliding", {"encoding": "rotary"}),
    Spec("multihead", {"encoding": "rotary"}),
    Spec("linear"),
    Spec("shortconv"),
    Spec("shortconv", {"kernel": 4}),
    Spec("gated-delta"),
    Spec("kda"),
]


@pytest.mark.parametrize("spec", [s for s in (*CAUSAL, *OTHERS) if s.type in FORMULAS], ids=str)
def test_formulas_for_each_pair_give_the_same_output(spec: Spec) -> None:
    """Outputs, and gradients of the input and of all parameters, in float64."""
    module = new(spec, gate=0.75).double()
    x = features(2, CHANNELS, N, dtype=torch.float64).requires_grad_()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "bias" in name or "norm" in name:  # Most are constant when new.
                parameter.copy_(features(*parameter.shape))
    expected = x + module.gamma * FORMULAS[spec.type](module, x.mT).mT
    inputs, gradient = (x, *module.parameters()), features(2, CHANNELS, N, dtype=torch.float64).cos()
    for result, target in zip(
        *((y, *torch.autograd.grad(y, inputs, gradient)) for y in (module(x), expected)), strict=True
    ):
        torch.testing.assert_close(result, target, rtol=1e-10, atol=1e-10)

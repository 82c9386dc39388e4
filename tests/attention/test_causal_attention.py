"""Causal and windowed attention compared with weights of all pairs, and no leak of later positions."""

import pytest
import torch
from attention_cases import CHANNELS, every_causal, features, new
from torch import Tensor, nn

from attention import Gated, Spec
from attention.prefix_sums import CHUNK, causal_softmax_sums, causal_sums

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


@every_causal
def test_a_prefix_has_the_same_output(spec: Spec) -> None:
    module, x = new(spec, gate=1).double().eval(), features(2, CHANNELS, 100, dtype=torch.float64)
    for length in (1, 40, 99):
        prefix = module(x[:, :, :length])
        torch.testing.assert_close(prefix, module(x)[:, :, :length], rtol=1e-10, atol=1e-10)


def _heads(module: Gated, tokens: Tensor) -> list[Tensor]:
    parts = module.in_proj(tokens).chunk(3, dim=-1)
    return [part.unflatten(-1, (module.heads, -1)).transpose(1, 2) for part in parts]  # (B, heads, N, d)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("type", "options"), [("sliding", {"window": 4}), ("sliding", {"window": 33}), ("linear", {})], ids=str
)
def test_weights_of_all_pairs_give_the_same_output(
    type: str, options: dict[str, int | bool], causal: bool
) -> None:
    """Computes the equations of the papers with N x N weights, and gradients of all parameters."""
    module = new(Spec(type, {**options, "causal": causal}), gate=0.75).double()
    x = features(2, CHANNELS, 90, dtype=torch.float64).requires_grad_()
    with torch.no_grad():
        module.in_proj.bias.copy_(features(3 * CHANNELS))
    q, k, v = _heads(module, x.mT)
    offset = torch.arange(90) - torch.arange(90)[:, None]
    after = 0 if causal else 90 if type == "linear" else (module.window - 1) // 2
    before = 90 if type == "linear" else module.window - 1 - after
    visible = (offset <= after) & (offset >= -before)
    if type == "linear":
        weights = (nn.functional.elu(q) + 1) @ (nn.functional.elu(k) + 1).mT * visible
        weights = weights / weights.sum(-1, keepdim=True)
    else:
        weights = (q @ k.mT / 2).masked_fill(~visible, float("-inf")).softmax(-1)
    update = module.out_proj((weights @ v).transpose(1, 2).flatten(2)).mT
    inputs, gradient = (x, *module.parameters()), features(2, CHANNELS, 90, dtype=torch.float64).cos()
    for result, expected in zip(
        *((y, *torch.autograd.grad(y, inputs, gradient)) for y in (module(x), x + module.gamma * update)),
        strict=True,
    ):
        torch.testing.assert_close(result, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("normalisation", ["softmax", "scaling", "scaling-keys", "none"])
def test_causal_decomposed_normalises_over_the_positions_it_sees(normalisation: str) -> None:
    """Each position equals the last of the module that is not causal, on the positions up to it."""
    options = {"normalisation": normalisation, "heads": 2}
    causal, plain = (
        new(Spec("decomposed", {**options, "causal": c}), gate=1).double() for c in (True, False)
    )
    x = features(2, CHANNELS, 70, dtype=torch.float64)
    expected = torch.cat([plain(x[:, :, : i + 1])[:, :, -1:] for i in range(70)], dim=2)
    torch.testing.assert_close(causal(x), expected, rtol=1e-10, atol=1e-10)

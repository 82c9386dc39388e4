"""The modules against the code they replace and against their equations written out, in float64."""

import itertools
import math
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from attention_cases import features, new
from torch import Tensor, nn

from attention import Gated, Spec
from attention.padding import padding

C = 16
GATE = 0.75
SHAPES = [(2, C, 5, 7), (2, C, 3, 2)]  # N above and below C
shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)


def _close(ours: Tensor, theirs: Tensor) -> None:
    assert (ours - theirs).norm() <= 1e-10 * theirs.norm()


def _double(spec: Spec, channels: int = C) -> Gated:
    """In evaluation mode, with spectral norms that have seen some training."""
    module = new(spec, channels, gate=GATE).double()
    for _ in range(3):
        module(features(1, channels, 4, dtype=torch.float64))
    return module.eval()


def _copy_spectral(ours: nn.Module, theirs: nn.Module) -> None:
    """From torch's parametrization into the hook of the older `torch.nn.utils.spectral_norm`."""
    mine = ours.parametrizations.weight
    with torch.no_grad():
        theirs.weight_orig.copy_(mine.original.view_as(theirs.weight_orig))
        theirs.weight_u.copy_(mine[0]._u)
        theirs.weight_v.copy_(mine[0]._v)


def _gate(theirs: nn.Module) -> nn.Module:
    with torch.no_grad():
        theirs.gamma.fill_(GATE)
    return theirs.eval()


@pytest.mark.parametrize("form", ["fused", "explicit"])
@shapes
def test_sagan_is_fastais_self_attention(shape: tuple[int, ...], form: str) -> None:
    from fastai.layers import SelfAttention

    ours, theirs = _double(Spec("sagan", {"form": form})), SelfAttention(C).double()
    for mine, layer in ((ours.f, theirs.query), (ours.g, theirs.key), (ours.h, theirs.value)):
        _copy_spectral(mine, layer[0])
    x = features(*shape, dtype=torch.float64)
    _close(ours(x), _gate(theirs)(x))


@pytest.mark.parametrize("positions", [30, 2500])
@pytest.mark.parametrize("masked", [False, True])
def test_both_forms_of_sagan_are_one_function(positions: int, masked: bool) -> None:
    """Within 1e-6 in float32, on both sides of the length from which a CPU fuses."""
    fused, explicit = (new(Spec("sagan", {"form": form}), gate=1).eval() for form in ("fused", "explicit"))
    x = features(2, C, positions)
    lengths = torch.tensor([[positions], [positions // 2]])
    with torch.no_grad(), padding(torch.arange(positions) < lengths) if masked else nullcontext():
        update, expected = explicit(x) - x, fused(x) - x
    assert (update - expected).abs().max() <= 1e-6 * max(1.0, float(expected.abs().max()))


@pytest.mark.parametrize("order", ["xxt-first", "conv-first"])
@pytest.mark.parametrize("ks", [1, 3])
@shapes
def test_ssa_is_fastais_simple_self_attention(shape: tuple[int, ...], ks: int, order: str) -> None:
    from fastai.layers import SimpleSelfAttention

    ours, theirs = _double(Spec("ssa", {"ks": ks, "order": order})), SimpleSelfAttention(C, ks).double()
    _copy_spectral(ours.conv, theirs.conv)
    x = features(*shape, dtype=torch.float64)
    _close(ours(x), _gate(theirs)(x))


@pytest.mark.parametrize("heads", [1, 4])
@shapes
def test_multihead_is_torchs_multihead_attention(shape: tuple[int, ...], heads: int) -> None:
    ours, theirs = (
        _double(Spec("multihead", {"heads": heads})),
        nn.MultiheadAttention(C, heads, batch_first=True),
    )
    with torch.no_grad():  # both start at zero, which would hide a wrong one
        ours.in_proj.bias.copy_(features(3 * C))
        ours.out_proj.bias.copy_(features(C))
    names = {"in_proj.weight": "in_proj_weight", "in_proj.bias": "in_proj_bias"}
    theirs.double().load_state_dict(
        {names.get(k, k): v for k, v in ours.state_dict().items() if k != "gamma"}
    )
    x = features(*shape, dtype=torch.float64)
    tokens = x.flatten(2).mT
    update, _ = theirs.eval()(tokens, tokens, tokens, need_weights=False)
    _close(ours(x), x + GATE * update.mT.view_as(x))


def _heads(ours: Gated, x: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Queries, keys and values of each head, each `(B, N, d)`."""
    tokens = x.flatten(2).mT
    q, k, v = (layer(tokens).chunk(ours.heads, dim=-1) for layer in (ours.query, ours.key, ours.value))
    return list(zip(q, k, v, strict=True))


def _decomposed(ours: Gated, x: Tensor, weights: list[Tensor]) -> Tensor:
    """Equation 1 of arXiv 1812.01243 with the N x N `weights` of each head."""
    values = [w @ v for w, (_, _, v) in zip(weights, _heads(ours, x), strict=True)]
    return x + GATE * ours.reprojection(torch.cat(values, dim=-1)).mT.view_as(x)


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("normalisation", ["scaling", "scaling-keys", "none"])
@shapes
def test_decomposed_is_dot_product_attention(shape: tuple[int, ...], normalisation: str, heads: int) -> None:
    ours = _double(Spec("decomposed", {"normalisation": normalisation, "heads": heads}))
    x = features(*shape, dtype=torch.float64)
    divisors = {"scaling": x[0, 0].numel(), "scaling-keys": math.sqrt(C // 2 // heads), "none": 1}
    n = divisors[normalisation]
    _close(ours(x), _decomposed(ours, x, [q @ k.mT / n for q, k, _ in _heads(ours, x)]))


@pytest.mark.parametrize("heads", [1, 4])
@shapes
def test_decomposed_softmax_implies_weights_that_sum_to_one(shape: tuple[int, ...], heads: int) -> None:
    ours = _double(Spec("decomposed", {"heads": heads}))
    x = features(*shape, dtype=torch.float64)
    weights = [q.softmax(dim=2) @ k.softmax(dim=1).mT for q, k, _ in _heads(ours, x)]
    for w in weights:
        assert (w >= 0).all()
        torch.testing.assert_close(w.sum(dim=-1), torch.ones_like(w[..., 0]))
    _close(ours(x), _decomposed(ours, x, weights))


@pytest.mark.parametrize("ks", [1, 3])
def test_symmetric_ssa_is_symmetric_and_normalised_at_once(ks: int) -> None:
    module = new(Spec("ssa-sym", {"ks": ks}), C, gate=GATE).double()
    for _ in range(200):  # power iteration, one step a pass
        module(features(1, C, 4, dtype=torch.float64))
    weight = module.eval().conv.weight  # (C, C, ks)
    assert not torch.equal(module.conv.parametrizations.weight.original.mT, weight)
    torch.testing.assert_close(weight, weight.transpose(0, 1), rtol=1e-12, atol=1e-12)
    assert torch.linalg.matrix_norm(weight.flatten(1), ord=2).item() == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("ks", [1, 3])
def test_symmetric_ssa_differs_from_the_plain_one_with_the_same_parameters(ks: int) -> None:
    """In fastai it does not: there the symmetric weight is overwritten before it is used."""
    plain, symmetric = (_double(Spec(name, {"ks": ks})) for name in ("ssa", "ssa-sym"))
    weights = [m.conv.parametrizations.weight.original for m in (plain, symmetric)]
    assert torch.equal(*weights)
    x = features(2, C, 5, 7, dtype=torch.float64)
    assert (plain(x) - symmetric(x)).norm() > 0.01 * (plain(x) - x).norm()


@pytest.mark.parametrize("name", ["ssa", "ssa-sym", "sagan"])
def test_spectral_norms_work_in_training_mode(name: str) -> None:
    module = new(Spec(name), C).double()
    for _ in range(200):
        module(features(1, C, 4, dtype=torch.float64))
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear | nn.Conv1d)]
    for layer in layers:
        norm = torch.linalg.matrix_norm(layer.weight.flatten(1), ord=2)
        assert norm.item() == pytest.approx(1, abs=1e-3)
    assert len(layers) == (3 if name == "sagan" else 1)


def test_conv1x1_is_a_convolution() -> None:
    ours = _double(Spec("conv1x1"))
    x = features(2, C, 5, 7, dtype=torch.float64)
    _close(ours(x), x + GATE * torch.nn.functional.conv2d(x, ours.conv.weight[..., None, None]))


def _sinusoid(place: int, channel: int, width: int) -> float:
    """Of one axis, whose sines come before its cosines."""
    angle = place / 10_000 ** ((channel % width) / width)
    return math.sin(angle) if channel < width else math.cos(angle)


def test_absolute_encoding_is_added_to_what_queries_and_keys_are_made_of() -> None:
    """Restated one position at a time: three columns of eight channels, two rows of the next eight."""
    ours = _double(Spec("multihead", {"heads": 2, "encoding": "absolute"}), 18)
    x = features(2, 18, 2, 3, dtype=torch.float64)
    where = torch.zeros(18, 2, 3, dtype=torch.float64)
    for row, column, channel in itertools.product(range(2), range(3), range(16)):
        place = row if channel < 8 else column
        where[channel, row, column] = _sinusoid(place, channel % 8, 4)
    seen, tokens = (x + where).flatten(2).mT, x.flatten(2).mT
    weight, bias = ours.in_proj.weight, ours.in_proj.bias
    q, k = (F.linear(seen, weight[i : i + 18], bias[i : i + 18]) for i in (0, 18))
    v = F.linear(tokens, weight[36:], bias[36:])
    heads = [
        torch.softmax(q[..., i : i + 9] @ k[..., i : i + 9].mT / 3, dim=-1) @ v[..., i : i + 9]
        for i in (0, 9)
    ]
    _close(ours(x), x + GATE * ours.out_proj(torch.cat(heads, dim=-1)).mT.view_as(x))


def _bucket(offset: int) -> int:
    """Equation of arXiv 1910.10683's relative positions: exact below 8, logarithmic up to 128."""
    side, distance = 16 * (offset > 0), abs(offset)
    if distance < 8:
        return side + distance
    return side + min(15, 8 + int(math.log(distance / 8) / math.log(128 / 8) * 8 + 1e-9))


def test_relative_bias_is_by_the_offset_along_every_axis() -> None:
    ours = _double(Spec("multihead", {"heads": 2, "encoding": "relative"}))
    with torch.no_grad():
        ours.bias.table.copy_(features(*ours.bias.table.shape))
    down, along = (
        ours.bias.table[axis][torch.tensor([[_bucket(k - q) for k in range(n)] for q in range(n)])]
        for axis, n in enumerate((2, 150))
    )
    bias = (down[:, None, :, None] + along[None, :, None, :]).flatten(2, 3).flatten(0, 1)  # (N, N, heads)
    x = features(1, C, 2, 150, dtype=torch.float64)
    q, k, v = ours.in_proj(x.flatten(2).mT).chunk(3, dim=-1)
    half = C // 2
    heads = [
        torch.softmax(q[..., part] @ k[..., part].mT / math.sqrt(half) + bias[..., head], dim=-1)
        @ v[..., part]
        for head, part in enumerate((slice(0, half), slice(half, C)))
    ]
    _close(ours(x), x + GATE * ours.out_proj(torch.cat(heads, dim=-1)).mT.view_as(x))

"""The modules compared with the code they replace and with their written-out equations, in float64."""

import itertools
import math
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention import Gated, Spec
from attention.multihead import BLOCK, attend_causally, attend_where
from attention.padding import padding
from tests.helpers.attention_cases import features, new

C = 16
GATE = 0.75
SHAPES = [(2, C, 5, 7), (2, C, 3, 2)]  # N above and below C
shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)


def _assert_close(output: Tensor, expected: Tensor) -> None:
    assert (output - expected).norm() <= 1e-10 * expected.norm()


def _double(spec: Spec, channels: int = C) -> Gated:
    """Return a module in evaluation mode, with spectral norms after a few updates."""
    module = new(spec, channels, gate=GATE).double()
    for _ in range(3):
        module(features(1, channels, 4, dtype=torch.float64))
    return module.eval()


def _copy_spectral(module: nn.Module, reference: nn.Module) -> None:
    """Copy weights from torch's parametrization to the hook of the older `torch.nn.utils.spectral_norm`."""
    layer = module.parametrizations.weight
    with torch.no_grad():
        reference.weight_orig.copy_(layer.original.view_as(reference.weight_orig))
        reference.weight_u.copy_(layer[0]._u)
        reference.weight_v.copy_(layer[0]._v)


def _gate(reference: nn.Module) -> nn.Module:
    with torch.no_grad():
        reference.gamma.fill_(GATE)
    return reference.eval()


@pytest.mark.parametrize("form", ["fused", "explicit"])
@shapes
def test_sagan_is_fastais_self_attention(shape: tuple[int, ...], form: str) -> None:
    from fastai.layers import SelfAttention

    module, reference = _double(Spec("sagan", {"form": form})), SelfAttention(C).double()
    for layer, other in ((module.f, reference.query), (module.g, reference.key), (module.h, reference.value)):
        _copy_spectral(layer, other[0])
    x = features(*shape, dtype=torch.float64)
    _assert_close(module(x), _gate(reference)(x))


@pytest.mark.parametrize("positions", [30, 2500])
@pytest.mark.parametrize("masked", [False, True])
def test_both_forms_of_sagan_compute_the_same_function(positions: int, masked: bool) -> None:
    """Within 1e-6 in float32, on both sides of the length from which a CPU uses the fused kernel."""
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

    module, reference = _double(Spec("ssa", {"ks": ks, "order": order})), SimpleSelfAttention(C, ks).double()
    _copy_spectral(module.conv, reference.conv)
    x = features(*shape, dtype=torch.float64)
    _assert_close(module(x), _gate(reference)(x))


@pytest.mark.parametrize("heads", [1, 4])
@shapes
def test_multihead_is_torchs_multihead_attention(shape: tuple[int, ...], heads: int) -> None:
    module, reference = (
        _double(Spec("multihead", {"heads": heads})),
        nn.MultiheadAttention(C, heads, batch_first=True),
    )
    with torch.no_grad():  # Both start at zero, which would hide an error.
        module.in_proj.bias.copy_(features(3 * C))
        module.out_proj.bias.copy_(features(C))
    names = {"in_proj.weight": "in_proj_weight", "in_proj.bias": "in_proj_bias"}
    reference.double().load_state_dict(
        {names.get(k, k): v for k, v in module.state_dict().items() if k != "gamma"}
    )
    x = features(*shape, dtype=torch.float64)
    tokens = x.flatten(2).mT
    update, _ = reference.eval()(tokens, tokens, tokens, need_weights=False)
    _assert_close(module(x), x + GATE * update.mT.view_as(x))


def _heads(module: Gated, x: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return queries, keys and values of each head, each `(B, N, d)`."""
    tokens = x.flatten(2).mT
    q, k, v = (
        layer(tokens).chunk(module.heads, dim=-1) for layer in (module.query, module.key, module.value)
    )
    return list(zip(q, k, v, strict=True))


def _decomposed(module: Gated, x: Tensor, weights: list[Tensor]) -> Tensor:
    """Compute equation 1 of arXiv 1812.01243 with the N x N `weights` of each head."""
    values = [w @ v for w, (_, _, v) in zip(weights, _heads(module, x), strict=True)]
    return x + GATE * module.reprojection(torch.cat(values, dim=-1)).mT.view_as(x)


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("normalisation", ["scaling", "scaling-keys", "none"])
@shapes
def test_decomposed_is_dot_product_attention(shape: tuple[int, ...], normalisation: str, heads: int) -> None:
    module = _double(Spec("decomposed", {"normalisation": normalisation, "heads": heads}))
    x = features(*shape, dtype=torch.float64)
    divisors = {"scaling": x[0, 0].numel(), "scaling-keys": math.sqrt(C // 2 // heads), "none": 1}
    n = divisors[normalisation]
    _assert_close(module(x), _decomposed(module, x, [q @ k.mT / n for q, k, _ in _heads(module, x)]))


@pytest.mark.parametrize("heads", [1, 4])
@shapes
def test_decomposed_softmax_implies_weights_that_sum_to_one(shape: tuple[int, ...], heads: int) -> None:
    module = _double(Spec("decomposed", {"heads": heads}))
    x = features(*shape, dtype=torch.float64)
    weights = [q.softmax(dim=2) @ k.softmax(dim=1).mT for q, k, _ in _heads(module, x)]
    for w in weights:
        assert (w >= 0).all()
        torch.testing.assert_close(w.sum(dim=-1), torch.ones_like(w[..., 0]))
    _assert_close(module(x), _decomposed(module, x, weights))


@pytest.mark.parametrize("ks", [1, 3])
def test_symmetric_ssa_is_symmetric_and_normalised_at_once(ks: int) -> None:
    module = new(Spec("ssa-sym", {"ks": ks}), C, gate=GATE).double()
    for _ in range(200):  # Each pass is one step of power iteration.
        module(features(1, C, 4, dtype=torch.float64))
    weight = module.eval().conv.weight  # (C, C, ks)
    assert not torch.equal(module.conv.parametrizations.weight.original.mT, weight)
    torch.testing.assert_close(weight, weight.transpose(0, 1), rtol=1e-12, atol=1e-12)
    assert torch.linalg.matrix_norm(weight.flatten(1), ord=2).item() == pytest.approx(1, abs=1e-3)


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
    module = _double(Spec("conv1x1"))
    x = features(2, C, 5, 7, dtype=torch.float64)
    _assert_close(module(x), x + GATE * torch.nn.functional.conv2d(x, module.conv.weight[..., None, None]))


def _sinusoid(position: int, channel: int, width: int) -> float:
    """Return the encoding of one axis. Sines precede cosines."""
    angle = position / 10_000 ** ((channel % width) / width)
    return math.sin(angle) if channel < width else math.cos(angle)


def test_absolute_encoding_is_added_to_the_input_of_queries_and_keys() -> None:
    """Computes one position at a time: three columns of eight channels, two rows of the next eight."""
    module = _double(Spec("multihead", {"heads": 2, "encoding": "absolute"}), 18)
    x = features(2, 18, 2, 3, dtype=torch.float64)
    encoding = torch.zeros(18, 2, 3, dtype=torch.float64)
    for row, column, channel in itertools.product(range(2), range(3), range(16)):
        position = row if channel < 8 else column
        encoding[channel, row, column] = _sinusoid(position, channel % 8, 4)
    encoded, tokens = (x + encoding).flatten(2).mT, x.flatten(2).mT
    weight, bias = module.in_proj.weight, module.in_proj.bias
    q, k = (F.linear(encoded, weight[i : i + 18], bias[i : i + 18]) for i in (0, 18))
    v = F.linear(tokens, weight[36:], bias[36:])
    heads = [
        torch.softmax(q[..., i : i + 9] @ k[..., i : i + 9].mT / 3, dim=-1) @ v[..., i : i + 9]
        for i in (0, 9)
    ]
    _assert_close(module(x), x + GATE * module.out_proj(torch.cat(heads, dim=-1)).mT.view_as(x))


def _bucket(offset: int) -> int:
    """Return the bucket of an offset by arXiv 1910.10683: exact below 8, logarithmic up to 128."""
    side, distance = 16 * (offset > 0), abs(offset)
    if distance < 8:
        return side + distance
    return side + min(15, 8 + int(math.log(distance / 8) / math.log(128 / 8) * 8 + 1e-9))


def test_relative_bias_is_by_the_offset_along_every_axis() -> None:
    module = _double(Spec("multihead", {"heads": 2, "encoding": "relative"}))
    with torch.no_grad():
        module.bias.table.copy_(features(*module.bias.table.shape))
    down, along = (
        module.bias.table[axis][torch.tensor([[_bucket(k - q) for k in range(n)] for q in range(n)])]
        for axis, n in enumerate((2, 150))
    )
    bias = (down[:, None, :, None] + along[None, :, None, :]).flatten(2, 3).flatten(0, 1)  # (N, N, heads)
    x = features(1, C, 2, 150, dtype=torch.float64)
    q, k, v = module.in_proj(x.flatten(2).mT).chunk(3, dim=-1)
    half = C // 2
    heads = [
        torch.softmax(q[..., columns] @ k[..., columns].mT / math.sqrt(half) + bias[..., head], dim=-1)
        @ v[..., columns]
        for head, columns in enumerate((slice(0, half), slice(half, C)))
    ]
    _assert_close(module(x), x + GATE * module.out_proj(torch.cat(heads, dim=-1)).mT.view_as(x))


@pytest.mark.parametrize("type", ["multihead", "sliding"])
def test_rotary_encoding_is_that_of_llama(type: str) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    module = _double(Spec(type, {"heads": 2, "encoding": "rotary", "causal": True}))
    x = features(2, C, 30, dtype=torch.float64)
    q, k, v = module.split_heads(module.in_proj(x.mT))
    angles = LlamaRotaryEmbedding(LlamaConfig(hidden_size=C, num_attention_heads=2))
    angles.inv_freq = angles.inv_freq.double()
    cosine, sine = (table.double() for table in angles(x.float(), torch.arange(30)[None]))
    q, k = apply_rotary_pos_emb(q, k, cosine, sine)
    update = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
    # Llama computes its angles in float32.
    torch.testing.assert_close(module(x), x + GATE * module.out_proj(update).mT, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kernel", [1, 3, 4])
def test_short_convolution_is_that_of_lfm2(kernel: int) -> None:
    from transformers import Lfm2Config
    from transformers.models.lfm2.modeling_lfm2 import Lfm2ShortConv

    module = _double(Spec("shortconv", {"kernel": kernel, "causal": True}))
    config = Lfm2Config(hidden_size=C, conv_L_cache=kernel, num_hidden_layers=1, layer_types=["conv"])
    reference = Lfm2ShortConv(config, 0).double()
    reference.load_state_dict({k: v for k, v in module.state_dict().items() if k != "gamma"})
    x = features(2, C, 30, dtype=torch.float64)
    _assert_close(module(x), x + GATE * reference(x.mT).mT)


def _gated_delta_of_transformers(kind: str, heads: int, kernel: int) -> nn.Module:
    """Return a layer of transformers whose heads split all channels."""
    from transformers import Qwen3_5TextConfig, Qwen3NextConfig
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

    sizes = {f"linear_num_{name}_heads": heads for name in ("key", "value")}
    sizes |= {f"linear_{name}_head_dim": C // heads for name in ("key", "value")}
    sizes |= {"hidden_size": C, "linear_conv_kernel_dim": kernel, "num_hidden_layers": 1}
    if kind == "qwen3.5":
        return Qwen3_5GatedDeltaNet(Qwen3_5TextConfig(**sizes, layer_types=["linear_attention"]), 0)
    return Qwen3NextGatedDeltaNet(Qwen3NextConfig(**sizes, layer_types=["linear_attention"]), 0)


@pytest.mark.parametrize(
    ("kind", "heads", "kernel"), [("qwen3.5", 4, 4), ("qwen3.5", 1, 2), ("qwen3-next", 2, 4)]
)
def test_gated_delta_is_that_of_qwen(kind: str, heads: int, kernel: int) -> None:
    """With the same names as Qwen3.5. Qwen3-Next joins the rows of each head. Both compute in float32."""
    module = new(Spec("gated-delta", {"heads": heads, "kernel": kernel, "causal": True}), C, gate=GATE)
    with torch.no_grad():  # It is one when new.
        module.norm.weight.copy_(features(C // heads))
    weights = {name: value for name, value in module.state_dict().items() if name != "gamma"}
    if kind == "qwen3-next":
        qkv = weights.pop("in_proj_qkv.weight").unflatten(0, (3, heads, -1)).unbind()
        z = weights.pop("in_proj_z.weight").unflatten(0, (heads, -1))
        weights["in_proj_qkvz.weight"] = torch.cat([*qkv, z], dim=1).flatten(0, 1)
        rates = [weights.pop(f"in_proj_{name}.weight") for name in "ba"]
        weights["in_proj_ba.weight"] = torch.stack(rates, dim=1).flatten(0, 1)
    reference = _gated_delta_of_transformers(kind, heads, kernel)
    reference.load_state_dict(weights)
    x = features(2, C, 150)
    expected = x + GATE * reference(x.mT).mT
    torch.testing.assert_close(module(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("heads", "kernel"), [(4, 4), (1, 2), (2, 1)])
def test_kda_is_that_of_kimi_linear(heads: int, kernel: int) -> None:
    """It joins queries, keys and values, and has names of its own. The reference computes in float32."""
    from transformers import KimiLinearConfig
    from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearDeltaAttention

    module = new(Spec("kda", {"heads": heads, "kernel": kernel, "causal": True}), C, gate=GATE)
    with torch.no_grad():  # It is one when new.
        module.norm.weight.copy_(features(C // heads))
    config = KimiLinearConfig(
        hidden_size=C,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
        linear_num_heads=heads,
        linear_head_dim=C // heads,
        linear_conv_kernel_dim=kernel,
        rms_norm_eps=1e-6,
    )
    reference, own = KimiLinearDeltaAttention(config, 0), module.state_dict()
    q, k, v = own["in_proj_qkv.weight"].chunk(3)
    weights = {"q_proj.weight": q, "k_proj.weight": k, "v_proj.weight": v}
    weights |= {"forget_gate.A_log": own["A_log"].view(1, 1, -1, 1), "forget_gate.dt_bias": own["dt_bias"]}
    names = {
        "conv1d": "conv1d",
        "in_proj_b": "b_proj",
        "in_proj_a.0": "forget_gate.f_a_proj",
        "in_proj_a.1": "forget_gate.f_b_proj",
        "in_proj_z.0": "g_a_proj",
        "in_proj_z.1": "g_b_proj",
        "norm": "o_norm",
        "out_proj": "o_proj",
    }
    weights |= {f"{theirs}.weight": own[f"{ours}.weight"] for ours, theirs in names.items()}
    reference.load_state_dict(weights)
    x = features(2, C, 150)
    expected = x + GATE * reference(x.mT).mT
    torch.testing.assert_close(module(x), expected, rtol=1e-4, atol=1e-5)


N = BLOCK + 40
EARLIER = torch.ones(N, N, dtype=torch.bool).tril()


@pytest.mark.parametrize(
    "attend", [attend_causally, lambda q, k, v: attend_where(q, k, v, EARLIER)], ids=["blocks", "mask"]
)
def test_plain_products_equal_the_fused_kernel(attend: Callable[..., Tensor]) -> None:
    torch.manual_seed(0)
    qkv = torch.randn(3, 2, 2, N, 8).to(torch.bfloat16).requires_grad_()
    exact = qkv.detach().double().requires_grad_()
    output, expected = attend(*qkv), F.scaled_dot_product_attention(*exact, is_causal=True)
    torch.testing.assert_close(output.double(), expected, atol=3e-2, rtol=0)
    direction = torch.randn_like(output)
    output.backward(direction)
    expected.backward(direction.double())
    assert exact.grad is not None
    torch.testing.assert_close(qkv.grad.double(), exact.grad, atol=0.1, rtol=0)


def test_no_query_sees_a_later_token() -> None:
    torch.manual_seed(0)
    qkv = torch.randn(3, 1, 2, N, 8).to(torch.bfloat16)
    before = attend_causally(*qkv)
    for end in (5, BLOCK, BLOCK + 20):
        changed = qkv.clone()
        changed[..., end:, :] = 9
        assert torch.equal(attend_causally(*changed)[:, :, :end], before[:, :, :end])

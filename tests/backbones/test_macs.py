"""Multiply-adds compared with formulas by hand and with fvcore."""

import math
from typing import Any

import pytest
import torch
from fvcore.nn import FlopCountAnalysis
from torch import nn

from attention import Spec
from backbones import build, insert, sites
from backbones.cost import attention_cost, count_macs

B, T, C, H = 2, 5, 3, 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (nn.LSTM(C, H), 4 * H * (C + H)),
        (nn.LSTM(C, H, batch_first=True, bias=False), 4 * H * (C + H)),
        (nn.LSTM(C, H, num_layers=2, bidirectional=True), 2 * 4 * H * (C + H) + 2 * 4 * H * (2 * H + H)),
        (nn.LSTM(C, H, proj_size=2), 4 * H * (C + 2) + H * 2),
        (nn.GRU(C, H), 3 * H * (C + H)),
        (nn.GRU(C, H, num_layers=2), 3 * H * (C + H) + 3 * H * (H + H)),
    ],
    ids=str,
)
def test_recurrent_layers(layer: nn.Module, expected: int, dtype: torch.dtype) -> None:
    """A processor runs them as one operation or as many, depending on the dtype."""
    assert count_macs(layer.to(dtype), torch.zeros(T, B, C, dtype=dtype)) == B * T * expected


@pytest.mark.parametrize("window", [3, 20])
@pytest.mark.parametrize("positional", [False, True], ids=["", "positional"])
def test_larnn(window: int, positional: bool) -> None:
    model = build(
        "larnn", classes=7, in_channels=C, hidden=H, heads=2, window=window, layers=2, positional=positional
    )
    attended = sum(min(t + 1, window) for t in range(T))
    per_example = T * (5 * H * (H + H) + 4 * H * H + 2 * H * H) + attended * 2 * H
    features = model.layers[0].branch.encodings.shape[1]
    layers = 2 * (B * per_example + window * features * 2 * H)
    assert count_macs(model.eval(), torch.zeros(B, C, T)) == B * T * C * H + layers + B * H * 7


def test_a_transformers_fused_path_counts_as_the_other_path() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True).eval()
    maps = T * (3 * 8 * 8 + 8 * 8 + 2 * 8 * 16)
    assert count_macs(layer, torch.zeros(B, T, 8)) == B * (maps + 2 * T * T * 8)
    assert torch.backends.mha.get_fastpath_enabled()


MODELS = {
    "xresnet18": 64,
    "vit": 64,
    "torchvision:resnet18": 64,
    "timm:test_vit": 160,
    **dict.fromkeys(
        [
            *("torchvision:resnet50", "torchvision:resnext50_32x4d", "torchvision:densenet121"),
            *("torchvision:mobilenet_v2", "torchvision:efficientnet_b0", "torchvision:regnet_y_400mf"),
            *("torchvision:convnext_tiny", "torchvision:swin_t", "timm:convnext_atto", "timm:resnest14d"),
            *("timm:edgenext_xx_small", "timm:poolformerv2_s12", "timm:mobilevit_xxs", "timm:skresnet18"),
            *("timm:dla46x_c", "timm:ghostnet_050"),
        ],
        64,
    ),
    "torchvision:vit_b_32": 224,
    "timm:deit_tiny_patch16_224": 224,
}
QUICK = 4  # Number of models that are always tested.
PRODUCTS = ("conv", "linear", "matmul", "addmm", "bmm", "baddbmm", "einsum", "scaled_dot_product_attention")


def attention_product(inputs: list[Any], outputs: list[Any]) -> int:
    """Count the products of attention weights and of weighted values, for (..., N, C) inputs."""
    query, key, value = (tensor.type().sizes() for tensor in inputs[:3])
    return math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


@pytest.mark.parametrize("placed", [False, True], ids=["plain", "attention"])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=() if i < QUICK else pytest.mark.slow("another case"))
        for i, n in enumerate(MODELS)
    ],
)
def test_multiply_adds_equal_fvcores_and_parameters_add_up(name: str, placed: bool) -> None:
    """fvcore also counts the operations of norms and pools, which are no multiply-adds."""
    size = MODELS[name]
    example, image = torch.zeros(2, 3, size, size), torch.zeros(1, 3, size, size)
    model = build(name, classes=10, size=size).eval()
    parameters = sum(p.numel() for p in model.parameters())
    if placed:
        known = [site for site in sites(model, example) if site.positions > 1 and not site.replaces]
        kinds = ("sagan", "multihead", "decomposed", "conv1x1", "ssa")
        placement = {site.name: Spec(kind) for site, kind in zip(known[1:], kinds, strict=False)}
        parameters += sum(
            attention_cost(placement[s.name], s).parameters for s in known if s.name in placement
        )
        insert(model, placement, example)
    assert sum(p.numel() for p in model.parameters()) == parameters
    counter = FlopCountAnalysis(model, image).unsupported_ops_warnings(False)
    counter.set_op_handle("aten::scaled_dot_product_attention", attention_product)
    counts = counter.by_operator()
    assert count_macs(model, image) == pytest.approx(sum(counts[kind] for kind in PRODUCTS), rel=0.01)

"""Multiply-adds against formulas by hand."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

from backbones import build
from backbones.macs import count_macs

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
    """A processor runs them as one operation or as many, by what it knows about the dtype."""
    assert count_macs(layer.to(dtype), torch.zeros(T, B, C, dtype=dtype)) == B * T * expected


def test_packed_sequences_count_what_is_real() -> None:
    class Packing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(C, H)

        def forward(self, x: Tensor) -> Tensor:
            return self.lstm(pack_sequence([x[:, 0], x[:2, 1]]))[0].data

    assert count_macs(Packing(), torch.zeros(T, B, C)) == (T + 2) * 4 * H * (C + H)


@pytest.mark.parametrize("window", [3, 20])
@pytest.mark.parametrize("positional", [False, True], ids=["", "positional"])
def test_larnn(window: int, positional: bool) -> None:
    model = build(
        "larnn", classes=7, in_channels=C, hidden=H, heads=2, window=window, layers=2, positional=positional
    )
    looks = sum(min(t + 1, window) for t in range(T))
    one = T * (5 * H * (H + H) + 4 * H * H + 2 * H * H) + looks * 2 * H
    features = model.layers[0].branch.places.shape[1]
    layers = 2 * (B * one + window * features * 2 * H)
    assert count_macs(model.eval(), torch.zeros(B, C, T)) == B * T * C * H + layers + B * H * 7


def test_a_transformers_quick_path_counts_as_its_other_path() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True).eval()
    maps = T * (3 * 8 * 8 + 8 * 8 + 2 * 8 * 16)
    assert count_macs(layer, torch.zeros(B, T, 8)) == B * (maps + 2 * T * T * 8)
    assert torch.backends.mha.get_fastpath_enabled()


def test_leaves_no_hooks() -> None:
    layer = nn.LSTM(C, H)
    count_macs(layer, torch.zeros(T, B, C))
    assert not layer._forward_hooks
    assert not layer._forward_pre_hooks

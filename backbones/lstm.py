"""The recurrent baselines: a stacked LSTM, and bidirectional LSTMs stacked with residual connections.

Sources: S. Hochreiter, J. Schmidhuber, Long Short-Term Memory (1997). Y. Zhao, R. Yang, G. Chevalier, X. Xu,
Z. Zhang, Deep Residual Bidir-LSTM for Human Activity Recognition Using Wearable Sensors (2018), arXiv
1708.08989, and Chevalier's HAR-stacked-residual-bidir-LSTMs: each direction has half of the hidden units, the
directions are concatenated, and a batch norm follows each addition.

Departures of the second: each layer has its own residual connection, from a linear map of the input on; the
batch norm is one of each channel, not of all values together; the logits see the mean over time, as at the
last position the backward direction has seen one input only.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention import InputError
from attention.padding import padding
from backbones import ends
from backbones.norm import MaskedBatchNorm1d


class Layer(nn.Module):
    """One layer of hidden states: `(B, C, T)` and `mask` -> `(B, hidden, T)`.

    The backward direction runs over each sequence reversed within its own length, so that it starts at the
    last real position. Dropout is of the output.
    """

    def __init__(self, channels: int, hidden: int, *, bidirectional: bool, dropout: float) -> None:
        super().__init__()
        units = hidden // 2 if bidirectional else hidden
        self.forwards = nn.LSTM(channels, units)
        self.backwards = nn.LSTM(channels, units) if bidirectional else None
        self.dropout = dropout

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        y = _states(self.forwards, x)
        if self.backwards is not None:
            back = _states(self.backwards, ends.reverse(x, mask))
            y = torch.cat([y, ends.reverse(back, mask)], 1)
        return F.dropout(y, self.dropout, self.training)


class StackedLSTM(nn.Module):
    """Layers one after the other; the logits see the last real hidden state."""

    def __init__(self, *, classes: int, in_channels: int, hidden: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.in_channels = in_channels
        self.layers = nn.ModuleList(
            Layer(hidden if i else in_channels, hidden, bidirectional=False, dropout=dropout)
            for i in range(layers)
        )
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """`(B, C, T)` and bool `(B, T)` -> logits. Raises InputError for a bad shape."""
        ends.check(x, mask, self.in_channels)
        x = ends.without_padding(x, mask)
        with padding(mask):
            for layer in self.layers:
                x = layer(x, mask)
        logits: Tensor = self.head(ends.last(x, mask))
        return logits


class Block(nn.Module):
    """A bidirectional layer with a residual connection, and a batch norm."""

    def __init__(self, hidden: int, *, dropout: float) -> None:
        super().__init__()
        self.branch = Layer(hidden, hidden, bidirectional=True, dropout=dropout)
        self.norm = MaskedBatchNorm1d(hidden)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        y: Tensor = self.norm(x + self.branch(x, mask))
        return y


class ResidualBiLSTM(nn.Module):
    """A linear map of the input, residual bidirectional layers; the logits see the mean over time."""

    def __init__(self, *, classes: int, in_channels: int, hidden: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.in_channels = in_channels
        self.stem = nn.Conv1d(in_channels, hidden, 1)
        self.blocks = nn.ModuleList(Block(hidden, dropout=dropout) for _ in range(layers))
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """`(B, C, T)` and bool `(B, T)` -> logits. Raises InputError for a bad shape."""
        ends.check(x, mask, self.in_channels)
        x = self.stem(ends.without_padding(x, mask))
        with padding(mask):
            for block in self.blocks:
                x = block(x, mask)
        logits: Tensor = self.head(ends.mean(x, mask))
        return logits


def build_stacked(
    *, classes: int, in_channels: int, hidden: int = 64, layers: int = 2, dropout: float = 0.0
) -> nn.Module:
    """A stacked LSTM. Raises InputError for a size that cannot be built."""
    check_sizes(hidden=hidden, layers=layers, dropout=dropout)
    return StackedLSTM(
        classes=classes, in_channels=in_channels, hidden=hidden, layers=layers, dropout=dropout
    )


def build_residual(
    *, classes: int, in_channels: int, hidden: int = 64, layers: int = 3, dropout: float = 0.0
) -> nn.Module:
    """Residual bidirectional LSTMs. Raises InputError for a size that cannot be built."""
    check_sizes(hidden=hidden, layers=layers, dropout=dropout)
    if hidden % 2:
        raise InputError(f"each direction has half of the hidden units: hidden must be even; got {hidden}")
    return ResidualBiLSTM(
        classes=classes, in_channels=in_channels, hidden=hidden, layers=layers, dropout=dropout
    )


def check_sizes(*, hidden: int, layers: int, dropout: float) -> None:
    """Raises InputError for what no recurrent network can have."""
    if not 1 <= hidden <= 8192:
        raise InputError(f"hidden, the units of a layer, must lie between 1 and 8192; got {hidden}")
    if not 1 <= layers <= 64:
        raise InputError(f"layers must lie between 1 and 64; got {layers}")
    if not 0 <= dropout < 1:
        raise InputError(f"dropout must lie in [0, 1); got {dropout}")


def _states(lstm: nn.LSTM, x: Tensor) -> Tensor:
    states: Tensor = lstm(x.permute(2, 0, 1))[0]
    return states.permute(1, 2, 0)  # (B, H, T)

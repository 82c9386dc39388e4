"""The recurrent baselines: a stacked LSTM, and bidirectional LSTMs stacked with residual connections.

Sources: S. Hochreiter, J. Schmidhuber, Long Short-Term Memory (1997). Y. Zhao, R. Yang, G. Chevalier, X. Xu,
Z. Zhang, Deep Residual Bidir-LSTM for Human Activity Recognition Using Wearable Sensors (2018), arXiv
1708.08989, and Chevalier's HAR-stacked-residual-bidir-LSTMs. There each direction has half of the hidden
units, the directions are concatenated, and a batch norm follows each addition.

Departures of the second network: each layer has its own residual connection, starting at a linear map of the
input. The batch norm is per channel, not over all values together. The logits are computed from the mean over
time, since at the last position the backward direction has seen only one input.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention.padding import padding
from automl.base.errors import InputError
from backbones import padded
from backbones.padded import MaskedBatchNorm1d


class Layer(nn.Module):
    """LSTM layer that returns its hidden states, with dropout of the output.

    The backward direction runs over each sequence reversed within its own length, so it starts at the last
    real position.

    Args:
        channels: Number of channels C of the input.
        hidden: Number of units, of both directions together.
        bidirectional: Whether there is a backward direction.
        dropout: Dropout of the output.

    Shape:
        `(B, C, T)` to `(B, hidden, T)`, with a mask, bool `(B, T)`.
    """

    def __init__(self, channels: int, hidden: int, *, bidirectional: bool, dropout: float) -> None:
        super().__init__()
        units = hidden // 2 if bidirectional else hidden
        self.forwards = nn.LSTM(channels, units)
        self.backwards = nn.LSTM(channels, units) if bidirectional else None
        self.dropout = dropout

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the hidden states `(B, hidden, T)`."""
        y = _states(self.forwards, x)
        if self.backwards is not None:
            back = _states(self.backwards, padded.reverse(x, mask))
            y = torch.cat([y, padded.reverse(back, mask)], 1)
        return F.dropout(y, self.dropout, self.training)


class StackedLSTM(nn.Module):
    """Stacked LSTM layers with a head on the last real hidden state.

    Args:
        classes: Number of labels.
        in_channels: Number of channels of the input.
        hidden: Number of units of each layer.
        layers: Number of layers.
        dropout: Dropout of the output of each layer.
    """

    def __init__(self, *, classes: int, in_channels: int, hidden: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.in_channels = in_channels
        self.layers = nn.ModuleList(
            Layer(hidden if i else in_channels, hidden, bidirectional=False, dropout=dropout)
            for i in range(layers)
        )
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the logits `(B, classes)` of `x`, `(B, C, T)`, with a mask, bool `(B, T)`.

        Raises:
            InputError: `x` or `mask` has another shape.
        """
        padded.check(x, mask, self.in_channels)
        x = padded.without_padding(x, mask)
        with padding(mask):
            for layer in self.layers:
                x = layer(x, mask)
        logits: Tensor = self.head(padded.last(x, mask))
        return logits


class Block(nn.Module):
    """Bidirectional layer with a residual connection and a batch norm: `(B, hidden, T)` to the same shape.

    Args:
        hidden: Number of units.
        dropout: Dropout of the layer's output.
    """

    def __init__(self, hidden: int, *, dropout: float) -> None:
        super().__init__()
        self.branch = Layer(hidden, hidden, bidirectional=True, dropout=dropout)
        self.norm = MaskedBatchNorm1d(hidden)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return `norm(x + branch(x))`."""
        y: Tensor = self.norm(x + self.branch(x, mask))
        return y


class ResidualBiLSTM(nn.Module):
    """Linear map of the input, residual bidirectional layers, and a head on the mean over time.

    Args:
        classes: Number of labels.
        in_channels: Number of channels of the input.
        hidden: Number of units of each layer.
        layers: Number of layers.
        dropout: Dropout of the output of each layer.
    """

    def __init__(self, *, classes: int, in_channels: int, hidden: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.in_channels = in_channels
        self.stem = nn.Conv1d(in_channels, hidden, 1)
        self.blocks = nn.ModuleList(Block(hidden, dropout=dropout) for _ in range(layers))
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the logits `(B, classes)` of `x`, `(B, C, T)`, with a mask, bool `(B, T)`.

        Raises:
            InputError: `x` or `mask` has another shape.
        """
        padded.check(x, mask, self.in_channels)
        x = self.stem(padded.without_padding(x, mask))
        with padding(mask):
            for block in self.blocks:
                x = block(x, mask)
        logits: Tensor = self.head(padded.mean(x, mask))
        return logits


def build_stacked(
    *, classes: int, in_channels: int, hidden: int = 64, layers: int = 2, dropout: float = 0.0
) -> nn.Module:
    """Build a stacked LSTM. Raise `InputError` if a size is out of range."""
    check_sizes(hidden=hidden, layers=layers, dropout=dropout)
    return StackedLSTM(
        classes=classes, in_channels=in_channels, hidden=hidden, layers=layers, dropout=dropout
    )


def build_residual(
    *, classes: int, in_channels: int, hidden: int = 64, layers: int = 3, dropout: float = 0.0
) -> nn.Module:
    """Build residual bidirectional LSTMs. Raise `InputError` if a size is out of range."""
    check_sizes(hidden=hidden, layers=layers, dropout=dropout)
    if hidden % 2:
        raise InputError(f"each direction has half of the hidden units: hidden must be even; got {hidden}")
    return ResidualBiLSTM(
        classes=classes, in_channels=in_channels, hidden=hidden, layers=layers, dropout=dropout
    )


def check_sizes(*, hidden: int, layers: int, dropout: float) -> None:
    """Raise `InputError` if a size of a recurrent network is out of range."""
    if not 1 <= hidden <= 8192:
        raise InputError(f"hidden, the units of a layer, must lie between 1 and 8192; got {hidden}")
    if not 1 <= layers <= 64:
        raise InputError(f"layers must lie between 1 and 64; got {layers}")
    if not 0 <= dropout < 1:
        raise InputError(f"dropout must lie in [0, 1); got {dropout}")


def _states(lstm: nn.LSTM, x: Tensor) -> Tensor:
    states: Tensor = lstm(x.permute(2, 0, 1))[0]
    return states.permute(1, 2, 0)  # (B, H, T)

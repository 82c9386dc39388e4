"""Recurrent networks of sequences: their common frame, a stacked LSTM, and residual bidirectional LSTMs.

Sources: S. Hochreiter, J. Schmidhuber, Long Short-Term Memory (1997). Y. Zhao, R. Yang, G. Chevalier, X. Xu,
Z. Zhang, Deep Residual Bidir-LSTM for Human Activity Recognition Using Wearable Sensors (2018), arXiv
1708.08989, and Chevalier's HAR-stacked-residual-bidir-LSTMs. There each direction has half of the hidden
units, the directions are concatenated, and a batch norm follows each addition.

Departures of the second network: each layer has its own residual connection, starting at a linear map of the
input. The batch norm is per channel, not over all values together. The logits are computed from the mean over
time, since at the last position the backward direction has seen only one input.
"""

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention.padding import padding
from automl.base.errors import InputError
from backbones import padded
from backbones.padded import MaskedBatchNorm1d


class RecurrentNetwork(nn.Module):
    """Optional map of the input, recurrent layers, and a head on their last real state or on their mean.

    Args:
        layers: Layers that take `(B, C, T)` and a mask, and return hidden states `(B, hidden, T)`.
        classes: Number of labels.
        in_channels: Number of channels C of the input.
        hidden: Number of units of the last layer.
        stem: Map of the input before the layers.
        activation: Activation of the mapped input.
        pool: Reduces the states, given the mask, to `(B, hidden)`.
    """

    def __init__(
        self,
        layers: Iterable[nn.Module],
        *,
        classes: int,
        in_channels: int,
        hidden: int,
        stem: nn.Module | None = None,
        activation: Callable[[Tensor], Tensor] | None = None,
        pool: Callable[[Tensor, Tensor | None], Tensor] = padded.last,
    ) -> None:
        super().__init__()
        self.in_channels, self.activation, self.pool = in_channels, activation, pool
        self.stem = stem
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the logits `(B, classes)` of `x`, `(B, C, T)`, with a mask `(B, T)`, or raise InputError."""
        padded.check(x, mask, self.in_channels)
        x = padded.without_padding(x, mask)
        if self.stem is not None:
            x = self.stem(x)
        if self.activation is not None:
            x = self.activation(x)
        with padding(mask):
            for layer in self.layers:
                x = layer(x, mask)
        logits: Tensor = self.head(self.pool(x, mask))
        return logits


class Residual(nn.Module):
    """Recurrent layer with a residual connection: `(B, hidden, T)` to the same shape.

    Args:
        branch: The layer.
        norm: Norm after the addition.
    """

    def __init__(self, branch: nn.Module, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.branch, self.norm = branch, norm

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Add the states of the layer to `x`, and apply the norm."""
        y: Tensor = x + self.branch(x, mask)
        return y if self.norm is None else self.norm(y)


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


def _states(lstm: nn.LSTM, x: Tensor) -> Tensor:
    states: Tensor = lstm(x.permute(2, 0, 1))[0]
    return states.permute(1, 2, 0)  # (B, H, T)


def build_stacked(
    *, classes: int, in_channels: int, hidden: int = 64, layers: int = 2, dropout: float = 0.0
) -> nn.Module:
    """Build a stacked LSTM. Raise `InputError` if a size is out of range."""
    check_sizes(hidden=hidden, layers=layers, dropout=dropout)
    inputs = [in_channels, *[hidden] * (layers - 1)]
    stack = [Layer(channels, hidden, bidirectional=False, dropout=dropout) for channels in inputs]
    return RecurrentNetwork(stack, classes=classes, in_channels=in_channels, hidden=hidden)


def build_residual(
    *, classes: int, in_channels: int, hidden: int = 64, layers: int = 3, dropout: float = 0.0
) -> nn.Module:
    """Build residual bidirectional LSTMs. Raise `InputError` if a size is out of range."""
    check_sizes(hidden=hidden, layers=layers, dropout=dropout)
    if hidden % 2:
        raise InputError(f"each direction has half of the hidden units: hidden must be even; got {hidden}")
    stem = nn.Conv1d(in_channels, hidden, 1)
    stack = [Layer(hidden, hidden, bidirectional=True, dropout=dropout) for _ in range(layers)]
    return RecurrentNetwork(
        [Residual(layer, MaskedBatchNorm1d(hidden)) for layer in stack],
        classes=classes,
        in_channels=in_channels,
        hidden=hidden,
        stem=stem,
        pool=padded.mean,
    )


def check_sizes(*, hidden: int, layers: int, dropout: float) -> None:
    """Raise `InputError` if a size of a recurrent network is out of range."""
    if not 1 <= hidden <= 8192:
        raise InputError(f"hidden, the units of a layer, must lie between 1 and 8192; got {hidden}")
    if not 1 <= layers <= 64:
        raise InputError(f"layers must lie between 1 and 64; got {layers}")
    if not 0 <= dropout < 1:
        raise InputError(f"dropout must lie in [0, 1); got {dropout}")

"""Encoders of text: from indices of sub-tokens to one vector.

Source: H. Husain et al., CodeSearchNet Challenge (2019), arXiv 1909.09436, section 4: a bag of words, 1-D
convolutions, self-attention as in BERT (arXiv 1810.04805), and convolutions before self-attention.

Real tokens attend only to real tokens, convolutions read zeros at padding as beyond the ends, and pooling
ignores padding. So a text has the same vector however long its padding is.

Options have the defaults of CodeSearchNet's code (https://github.com/github/CodeSearchNet, src/encoders).
Departures: self-attention has two layers, as in the published results, instead of the code's default of
three. Convolutions read zeros at padding instead of an embedding. Attention weights have no dropout. There
are no embeddings of token types, since there would be only one type.
"""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention.padding import padding
from attention.position import sinusoids
from automl.tasks.code_retrieval.encoder_options import check, parse_numbers
from automl.tasks.code_retrieval.layers import (
    EPSILON,
    Activation,
    Convolution,
    Layer,
    Pool,
    Pooling,
    Residual,
)

Positions = Literal["learned", "sinusoidal", "none"]
FirstPositions = Literal["none", "learned"]


class Encoder(nn.Module):
    """Encoder of texts to one vector each.

    Args:
        convolutions: Modules before the positions and the norm. The last one returns `(B, T, hidden)`.
        layers: Modules after them. The last one returns `(B, T, D)`.
        vocabulary: Number of different tokens.
        length: Maximum number of tokens, for learned positions.
        hidden: Width of the embedded tokens.
        positions: Encoding of positions after the convolutions.
        pooling: Pooling of the vectors of the tokens.
        dropout: Dropout of the embedded tokens.
        norm: Whether a layer norm follows the positions.
        width: D. `hidden` by default.
        first_positions: `learned` also adds positions before the convolutions.

    Shape:
        Tokens, int `(B, T)`, and a mask, bool `(B, T)`, to vectors `(B, D)`.
    """

    def __init__(
        self,
        convolutions: Sequence[nn.Module],
        layers: Sequence[nn.Module],
        *,
        vocabulary: int,
        length: int,
        hidden: int,
        positions: Positions,
        pooling: Pool,
        dropout: float,
        norm: bool,
        width: int | None = None,
        first_positions: FirstPositions = "none",
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        nn.init.normal_(self.embedding.weight, std=hidden**-0.5)
        self.positions, self.first_positions = positions, first_positions
        if positions == "learned":
            # The names in a checkpoint are kept.
            self.register_parameter("places", nn.Parameter(torch.randn(length, hidden) * 0.1 * hidden**-0.5))
        if first_positions == "learned":
            self.first_places = nn.Parameter(torch.randn(length, hidden) * 0.1 * hidden**-0.5)
        self.norm = nn.LayerNorm(hidden, EPSILON) if norm else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.convolutions = len(convolutions)  # Number of convolutions among the layers.
        self.layers = nn.ModuleList([*convolutions, *layers])
        self.pooling = Pooling(hidden if width is None else width, pooling)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return the vectors `(B, D)` of `tokens`, int `(B, T)`, with a mask, bool `(B, T)`."""
        layers = list(self.layers.children())
        with padding(mask):
            x = self.embedding(tokens)
            if self.convolutions:
                x = F.dropout(x, self.dropout.p, self.training)
            if self.first_positions == "learned":
                x = x + self.first_places[: x.shape[1]]
            for layer in layers[: self.convolutions]:
                x = layer(x)
            if self.positions == "learned":
                x = x + self.get_parameter("places")[: x.shape[1]]
            elif self.positions == "sinusoidal":
                x = x + x.shape[2] ** -0.5 * sinusoids(x.shape[1:2], x.shape[2], x)
            x = self.dropout(self.norm(x))
            for layer in layers[self.convolutions :]:
                x = layer(x)
        y: Tensor = self.pooling(x, mask)
        return y


def bow(
    *,
    vocabulary: int,
    length: int,
    hidden: int = 128,
    pooling: Pool = "mean",
    dropout: float = 0.1,
) -> Encoder:
    """Build a bag of words: the pooled embeddings of the tokens."""
    check(hidden=hidden, dropout=dropout)
    return Encoder(
        [],
        [],
        vocabulary=vocabulary,
        length=length,
        hidden=hidden,
        positions="none",
        pooling=pooling,
        dropout=dropout,
        norm=False,
    )


def cnn(
    *,
    vocabulary: int,
    length: int,
    hidden: int = 128,
    convolutions: int = 3,
    kernel: int = 16,
    channels: str = "",
    kernels: str = "",
    cnn_activation: Activation = "tanh",
    residual: Residual = "before",
    pooling: Pool = "weighted_mean",
    positions: Positions = "learned",
    dropout: float = 0.1,
) -> Encoder:
    """Build an encoder of convolutions.

    Args:
        vocabulary: Number of different tokens.
        length: Maximum number of tokens of a text, for learned positions.
        hidden: Width of the embedded tokens.
        convolutions: Number of convolutions.
        kernel: Number of tokens that a convolution covers.
        channels: Widths of the convolutions, such as `128-128-64`. Empty for `hidden` in each.
        kernels: Numbers of tokens that each convolution covers, such as `16-8-8`. Empty for `kernel` in each.
        cnn_activation: Activation of the convolutions.
        residual: Residual connection of each convolution but the first. See `Convolution`.
        pooling: Pooling of the vectors of the tokens.
        positions: Encoding of the positions, added before the convolutions.
        dropout: Dropout after the embedding and each convolution.

    Raises:
        InputError: An option is out of range, or options do not fit together.
    """
    check(
        hidden=hidden,
        dropout=dropout,
        convolutions=convolutions,
        kernel=kernel,
        channels=channels,
        kernels=kernels,
        residual=residual,
    )
    widths = parse_numbers(channels, hidden, convolutions)
    return Encoder(
        [],
        _convolutions(
            hidden, widths, parse_numbers(kernels, kernel, convolutions), cnn_activation, residual, dropout
        ),
        vocabulary=vocabulary,
        length=length,
        hidden=hidden,
        width=widths[-1] if widths else hidden,
        positions=positions,
        pooling=pooling,
        dropout=dropout,
        norm=False,
    )


def selfattention(
    *,
    vocabulary: int,
    length: int,
    hidden: int = 128,
    layers: int = 2,
    heads: int = 8,
    intermediate: int = 512,
    attention_activation: Activation = "gelu",
    pooling: Pool = "weighted_mean",
    positions: Positions = "learned",
    dropout: float = 0.1,
) -> Encoder:
    """Build an encoder of self-attention layers, as in BERT.

    Takes the arguments of `cnn_selfattention` without those of convolutions.
    """
    return cnn_selfattention(
        vocabulary=vocabulary,
        length=length,
        hidden=hidden,
        convolutions=0,
        layers=layers,
        heads=heads,
        intermediate=intermediate,
        attention_activation=attention_activation,
        pooling=pooling,
        positions=positions,
        dropout=dropout,
    )


def cnn_selfattention(
    *,
    vocabulary: int,
    length: int,
    hidden: int = 128,
    convolutions: int = 2,
    kernel: int = 8,
    channels: str = "",
    kernels: str = "",
    cnn_activation: Activation = "tanh",
    residual: Residual = "before",
    cnn_positions: FirstPositions = "none",
    layers: int = 2,
    heads: int = 8,
    intermediate: int = 512,
    attention_activation: Activation = "gelu",
    pooling: Pool = "weighted_mean",
    positions: Positions = "learned",
    dropout: float = 0.1,
) -> Encoder:
    """Build an encoder of convolutions followed by layers of self-attention.

    Args:
        vocabulary: Number of different tokens.
        length: Maximum number of tokens of a text, for learned positions.
        hidden: Width of the embedded tokens and of self-attention.
        convolutions: Number of convolutions.
        kernel: Number of tokens that a convolution covers.
        channels: Widths of the convolutions, such as `256-128`. The last one is `hidden`. Empty for `hidden`
            in each.
        kernels: Numbers of tokens that each convolution covers, such as `8-4`. Empty for `kernel` in each.
        cnn_activation: Activation of the convolutions.
        residual: Residual connection of each convolution but the first. See `Convolution`.
        cnn_positions: Encoding of the positions, added before the convolutions.
        layers: Number of layers of self-attention.
        heads: Number of heads of each layer. It must divide `hidden`.
        intermediate: Width inside a layer's perceptron.
        attention_activation: Activation of that perceptron.
        pooling: Pooling of the vectors of the tokens.
        positions: Encoding of the positions, added after the convolutions as in BERT.
        dropout: Dropout after embedding, convolutions, positions, attention and perceptrons.

    Raises:
        InputError: An option is out of range, or options do not fit together.
    """
    check(
        hidden=hidden,
        dropout=dropout,
        convolutions=convolutions,
        kernel=kernel,
        channels=channels,
        kernels=kernels,
        residual=residual,
        layers=layers,
        heads=heads,
        intermediate=intermediate,
    )
    widths = parse_numbers(channels, hidden, convolutions)
    return Encoder(
        _convolutions(
            hidden, widths, parse_numbers(kernels, kernel, convolutions), cnn_activation, residual, dropout
        ),
        [Layer(hidden, heads, intermediate, dropout, attention_activation) for _ in range(layers)],
        vocabulary=vocabulary,
        length=length,
        hidden=hidden,
        positions=positions,
        first_positions=cnn_positions,
        pooling=pooling,
        dropout=dropout,
        norm=True,
    )


def _convolutions(
    inputs: int,
    widths: Sequence[int],
    kernels: Sequence[int],
    activation: Activation,
    residual: Residual,
    dropout: float,
) -> list[nn.Module]:
    """Return consecutive convolutions, of which the first has no residual connection."""
    before = [inputs, *widths]
    return [
        Convolution(
            before[i],
            width,
            kernel,
            activation=activation,
            residual=residual if i else "none",
            dropout=dropout,
        )
        for i, (width, kernel) in enumerate(zip(widths, kernels, strict=True))
    ]

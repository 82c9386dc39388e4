"""Encoders of text: from numbers of sub-tokens to one vector.

Source: H. Husain et al., CodeSearchNet Challenge (2019), arXiv 1909.09436, section 4: a bag of words, 1-D
convolutions, self-attention as in BERT (arXiv 1810.04805), and convolutions before self-attention.

Padding: real tokens look at real ones alone, convolutions see zeros there as beyond the ends, and the vector
is made of real ones. So a text has the same vector whatever it is padded to.

Options have the defaults of CodeSearchNet's code (https://github.com/github/CodeSearchNet, src/encoders).
Departures: self-attention has two layers, as in the published results, where the code's default is three.
Convolutions see zeros at padding, and not an embedding. Attention weights have no dropout. There are no
embeddings of token types, of which there would be one.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention.padding import current_mask, padding
from attention.position import sinusoids
from backbones.pooling import Pool, Pooling
from backbones.text_options import check, each

Positions = Literal["learned", "sinusoidal", "none"]
FirstPositions = Literal["none", "learned"]
Residual = Literal["before", "after", "none"]
Activation = Literal["linear", "tanh", "relu", "leaky_relu", "elu", "selu", "gelu"]

EPSILON = 1e-12  # of the layer norms, as in BERT

ACTIVATIONS: Mapping[str, Callable[[], nn.Module]] = MappingProxyType(
    {
        "linear": nn.Identity,
        "tanh": nn.Tanh,
        "relu": nn.ReLU,
        "leaky_relu": lambda: nn.LeakyReLU(0.2),  # TensorFlow's slope
        "elu": nn.ELU,
        "selu": nn.SELU,
        "gelu": nn.GELU,
    }
)


class SelfAttention(nn.Module):
    """Multi-head self-attention over the real tokens: `(B, T, D)` -> `(B, T, D)`.

    Source: A. Vaswani et al. (2017), arXiv 1706.03762, section 3.2.2. Its weights have no dropout, with which
    there is no fused kernel on a CPU.
    """

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.in_proj = nn.Linear(channels, 3 * channels)
        self.out_proj = nn.Linear(channels, channels)
        nn.init.xavier_uniform_(self.in_proj.weight)
        nn.init.zeros_(self.in_proj.bias)
        nn.init.zeros_(self.out_proj.bias)

    def forward(self, x: Tensor) -> Tensor:
        mask = current_mask(x.shape[0], x.shape[1:2])
        if mask is not None:  # a softmax over nothing would be NaN
            mask = (mask | ~mask.any(1, keepdim=True))[:, None, None]  # (B, 1, 1, T)
        q, k, v = self.in_proj(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        update = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        y: Tensor = self.out_proj(update.transpose(1, 2).flatten(2))
        return y


class Layer(nn.Module):
    """A layer of a transformer with its norms after the additions: `(B, T, D)` -> `(B, T, D)`."""

    def __init__(
        self,
        channels: int,
        heads: int,
        intermediate: int,
        dropout: float,
        activation: Activation = "gelu",
    ) -> None:
        super().__init__()
        self.mixer = SelfAttention(channels, heads)
        self.mlp = nn.Sequential(
            nn.Linear(channels, intermediate), ACTIVATIONS[activation](), nn.Linear(intermediate, channels)
        )
        self.norm1, self.norm2 = nn.LayerNorm(channels, EPSILON), nn.LayerNorm(channels, EPSILON)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.dropout(self.mixer(x)))
        y: Tensor = self.norm2(x + self.dropout(self.mlp(x)))
        return y


class Convolution(nn.Module):
    """A convolution along the tokens: `(B, T, inputs)` -> `(B, T, channels)`.

    residual: `before` computes `f(W x + x)` with the activation f, as CodeSearchNet does; `after` computes
        `f(W x) + x`; `none` computes `f(W x)`. The first two need as many channels as inputs.

    An even kernel sees one token more behind than before.
    """

    def __init__(
        self,
        inputs: int,
        channels: int,
        kernel: int,
        *,
        activation: Activation,
        residual: Residual,
        dropout: float,
    ) -> None:
        super().__init__()
        before = (kernel - 1) // 2
        self.branch = nn.Sequential(
            nn.ConstantPad1d((before, kernel - 1 - before), 0.0), nn.Conv1d(inputs, channels, kernel)
        )
        self.activation = ACTIVATIONS[activation]()
        self.residual = residual
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        mask = current_mask(x.shape[0], x.shape[1:2])
        if mask is not None:
            x = x.masked_fill(~mask.unsqueeze(2), 0.0)
        y = self.branch(x.mT).mT
        if self.residual == "before":
            y = y + x
        y = self.activation(y)
        if self.residual == "after":
            y = y + x
        z: Tensor = self.dropout(y)
        return z

    def extra_repr(self) -> str:
        return f"residual={self.residual}"


class Encoder(nn.Module):
    """Tokens, int `(B, T)`, and mask, bool `(B, T)`, to vectors `(B, D)`.

    convolutions: modules before the positions and the norm; the last one returns `(B, T, hidden)`.
    layers: modules after them; the last one returns `(B, T, D)`.
    length: the most tokens, for learned positions. width: D, `hidden` if not given.
    first_positions: `learned` adds positions before the convolutions, too.
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
            self.places = nn.Parameter(torch.randn(length, hidden) * 0.1 * hidden**-0.5)
        if first_positions == "learned":
            self.first_places = nn.Parameter(torch.randn(length, hidden) * 0.1 * hidden**-0.5)
        self.norm = nn.LayerNorm(hidden, EPSILON) if norm else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.convolutions = len(convolutions)  # of the layers
        self.layers = nn.ModuleList([*convolutions, *layers])
        self.pooling = Pooling(hidden if width is None else width, pooling)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
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
                x = x + self.places[: x.shape[1]]
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
    """A bag of words: the pooled embeddings of the tokens."""
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
        vocabulary: Different tokens.
        length: The most tokens of a text, for learned positions.
        hidden: Width of the embedded tokens.
        convolutions: Number of convolutions.
        kernel: Tokens that a convolution sees.
        channels: Widths of the convolutions, such as `128-128-64`. Empty: `hidden` in each.
        kernels: Tokens that each convolution sees, such as `16-8-8`. Empty: `kernel` in each.
        cnn_activation: Activation of the convolutions.
        residual: Residual connection of each convolution but the first; see `Convolution`.
        pooling: From the vectors of the tokens to one.
        positions: Encoding of the positions, added before the convolutions.
        dropout: After the embedding and each convolution.
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
    widths = each(channels, hidden, convolutions)
    return Encoder(
        [],
        _convolutions(hidden, widths, each(kernels, kernel, convolutions), cnn_activation, residual, dropout),
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
    """Layers of self-attention, as BERT's; the arguments are those of `cnn_selfattention`."""
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
    """Build an encoder of convolutions and layers of self-attention after them.

    Args:
        vocabulary: Different tokens.
        length: The most tokens of a text, for learned positions.
        hidden: Width of the embedded tokens and of self-attention.
        convolutions: Number of convolutions.
        kernel: Tokens that a convolution sees.
        channels: Widths of the convolutions, such as `256-128`; the last one is `hidden`. Empty: `hidden` in
            each.
        kernels: Tokens that each convolution sees, such as `8-4`. Empty: `kernel` in each.
        cnn_activation: Activation of the convolutions.
        residual: Residual connection of each convolution but the first; see `Convolution`.
        cnn_positions: Encoding of the positions, added before the convolutions.
        layers: Number of layers of self-attention.
        heads: Of each layer; they divide `hidden`.
        intermediate: Width inside a layer's perceptron.
        attention_activation: Activation of that perceptron.
        pooling: From the vectors of the tokens to one.
        positions: Encoding of the positions, added after the convolutions as BERT does.
        dropout: After embedding, convolutions, positions, attention and perceptrons.
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
    widths = each(channels, hidden, convolutions)
    return Encoder(
        _convolutions(hidden, widths, each(kernels, kernel, convolutions), cnn_activation, residual, dropout),
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
    """Convolutions one after another, without a residual connection at the first."""
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


# By the name that a configuration gives as its backbone. A new encoder is a function and its entry here.
ENCODERS: Mapping[str, Callable[..., Encoder]] = MappingProxyType(
    {
        "selfattention": selfattention,
        "cnn-selfattention": cnn_selfattention,
        "cnn": cnn,
        "bow": bow,
    }
)

"""Encoders of text: from numbers of sub-tokens to one vector.

Source: H. Husain et al., CodeSearchNet Challenge (2019), arXiv 1909.09436, section 4: a bag of words, 1-D
convolutions, self-attention as in BERT (arXiv 1810.04805), and convolutions before self-attention.

Padding: real tokens look at real ones alone, convolutions see zeros there as beyond the ends, and the vector
is made of real ones. So a text has the same vector whatever it is padded to.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention import InputError
from attention.padding import current_mask, padding
from attention.position import sinusoids
from backbones.pooling import Pool, Pooling

Positions = Literal["learned", "sinusoidal", "none"]

KERNEL = 8  # tokens that a convolution sees


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

    def __init__(self, channels: int, heads: int, intermediate: int, dropout: float) -> None:
        super().__init__()
        self.mixer = SelfAttention(channels, heads)
        self.mlp = nn.Sequential(
            nn.Linear(channels, intermediate), nn.GELU(), nn.Linear(intermediate, channels)
        )
        self.norm1, self.norm2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.dropout(self.mixer(x)))
        y: Tensor = self.norm2(x + self.dropout(self.mlp(x)))
        return y


class Convolution(nn.Module):
    """A residual convolution along the tokens: `x + tanh(W * x)`, `(B, T, D)` -> `(B, T, D)`.

    An even kernel sees one token more behind than before.
    """

    def __init__(self, channels: int, kernel: int, dropout: float) -> None:
        super().__init__()
        before = (kernel - 1) // 2
        self.branch = nn.Sequential(
            nn.ConstantPad1d((before, kernel - 1 - before), 0.0),
            nn.Conv1d(channels, channels, kernel),
            nn.Tanh(),
            nn.Dropout(dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        mask = current_mask(x.shape[0], x.shape[1:2])
        if mask is not None:
            x = x.masked_fill(~mask.unsqueeze(2), 0.0)
        y: Tensor = x + self.branch(x.mT).mT
        return y


class Encoder(nn.Module):
    """Tokens, int `(B, T)`, and mask, bool `(B, T)`, to vectors `(B, hidden)`.

    layers: modules `(B, T, hidden)` -> the same shape. length: the most tokens, for learned positions.
    """

    def __init__(
        self,
        layers: Sequence[nn.Module],
        *,
        vocabulary: int,
        length: int,
        hidden: int,
        positions: Positions,
        pooling: Pool,
        dropout: float,
        norm: bool,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        nn.init.normal_(self.embedding.weight, std=hidden**-0.5)
        self.positions = positions
        if positions == "learned":
            self.places = nn.Parameter(torch.randn(length, hidden) * 0.1 * hidden**-0.5)
        self.norm = nn.LayerNorm(hidden) if norm else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(layers)
        self.pooling = Pooling(hidden, pooling)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        with padding(mask):
            x = self.embedding(tokens)
            if self.positions == "learned":
                x = x + self.places[: x.shape[1]]
            elif self.positions == "sinusoidal":
                x = x + x.shape[2] ** -0.5 * sinusoids(x.shape[1:2], x.shape[2], x)
            x = self.dropout(self.norm(x))
            for layer in self.layers.children():
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
    convolutions: int = 2,
    kernel: int = KERNEL,
    pooling: Pool = "weighted_mean",
    positions: Positions = "none",
    dropout: float = 0.1,
) -> Encoder:
    """Residual convolutions of `kernel` tokens with tanh."""
    check(hidden=hidden, dropout=dropout, convolutions=convolutions, kernel=kernel)
    return Encoder(
        [Convolution(hidden, kernel, dropout) for _ in range(convolutions)],
        vocabulary=vocabulary,
        length=length,
        hidden=hidden,
        positions=positions,
        pooling=pooling,
        dropout=dropout,
        norm=True,
    )


def selfattention(
    *,
    vocabulary: int,
    length: int,
    hidden: int = 128,
    layers: int = 2,
    heads: int = 8,
    intermediate: int = 512,
    pooling: Pool = "weighted_mean",
    positions: Positions = "learned",
    dropout: float = 0.1,
) -> Encoder:
    """Layers of self-attention, as BERT's."""
    return cnn_selfattention(
        vocabulary=vocabulary,
        length=length,
        hidden=hidden,
        convolutions=0,
        layers=layers,
        heads=heads,
        intermediate=intermediate,
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
    kernel: int = KERNEL,
    layers: int = 2,
    heads: int = 8,
    intermediate: int = 512,
    pooling: Pool = "weighted_mean",
    positions: Positions = "learned",
    dropout: float = 0.1,
) -> Encoder:
    """Residual convolutions, then layers of self-attention."""
    check(
        hidden=hidden,
        dropout=dropout,
        convolutions=convolutions,
        kernel=kernel,
        layers=layers,
        heads=heads,
        intermediate=intermediate,
    )
    return Encoder(
        [
            *(Convolution(hidden, kernel, dropout) for _ in range(convolutions)),
            *(Layer(hidden, heads, intermediate, dropout) for _ in range(layers)),
        ],
        vocabulary=vocabulary,
        length=length,
        hidden=hidden,
        positions=positions,
        pooling=pooling,
        dropout=dropout,
        norm=True,
    )


# By the name that a configuration gives as its backbone. A new encoder is a function and its entry here.
ENCODERS: Mapping[str, Callable[..., Encoder]] = MappingProxyType(
    {
        "selfattention": selfattention,
        "cnn-selfattention": cnn_selfattention,
        "cnn": cnn,
        "bow": bow,
    }
)

LIMITS = {
    "hidden": (8, 4096),
    "layers": (0, 48),
    "convolutions": (0, 48),
    "heads": (1, 256),
    "intermediate": (1, 16384),
    "kernel": (1, 99),
}
LIMITED = (*LIMITS, "dropout")


def check(*, dropout: float = 0.0, **sizes: int) -> None:
    """Raises InputError for options that an encoder cannot have, or not together."""
    for name, size in sizes.items():
        low, high = LIMITS[name]
        if not low <= size <= high:
            raise InputError(f"{name} of a text encoder must lie between {low} and {high}; got {size}")
    if not 0 <= dropout < 1:
        raise InputError(f"dropout of a text encoder must be at least 0 and below 1; got {dropout}")
    if "heads" in sizes and sizes["hidden"] % sizes["heads"]:
        hidden, heads = sizes["hidden"], sizes["heads"]
        raise InputError(f"hidden must be a multiple of heads; got hidden={hidden}, heads={heads}")

"""Layers of the encoders of texts: self-attention, convolutions, and pooling to one vector.

Source: H. Husain et al., CodeSearchNet Challenge (2019), arXiv 1909.09436, section 4, and its code for the
weights of the weighted mean, which have no bias. BERT's pooling is that of arXiv 1810.04805.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention.padding import current_mask
from automl.base.errors import InputError

Activation = Literal["linear", "tanh", "relu", "leaky_relu", "elu", "selu", "gelu"]
Pool = Literal["weighted_mean", "mean", "max", "first", "bert"]

EPSILON = 1e-12  # Epsilon of the layer norms, as in BERT.

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
    """Multi-head self-attention over the real tokens.

    Source: A. Vaswani et al. (2017), arXiv 1706.03762, section 3.2.2. Its weights have no dropout, since with
    dropout there is no fused kernel on a CPU.

    Args:
        channels: Width D of the vectors.
        heads: Number of heads.

    Shape:
        `(B, T, D)` to the same shape.
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
        """Return the update of each token, `(B, T, D)`."""
        mask = current_mask(x.shape[0], x.shape[1:2])
        if mask is not None:  # A softmax over no token would be NaN.
            mask = (mask | ~mask.any(1, keepdim=True))[:, None, None]  # (B, 1, 1, T)
        q, k, v = self.in_proj(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        update = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        y: Tensor = self.out_proj(update.transpose(1, 2).flatten(2))
        return y


class Layer(nn.Module):
    """Layer of a transformer with its norms after the additions.

    Args:
        channels: Width D of the vectors.
        heads: Number of heads.
        intermediate: Width inside the perceptron.
        dropout: Dropout of both branches.
        activation: Activation of the perceptron.

    Shape:
        `(B, T, D)` to the same shape.
    """

    def __init__(
        self, channels: int, heads: int, intermediate: int, dropout: float, activation: Activation = "gelu"
    ) -> None:
        super().__init__()
        self.mixer = SelfAttention(channels, heads)
        self.mlp = nn.Sequential(
            nn.Linear(channels, intermediate), ACTIVATIONS[activation](), nn.Linear(intermediate, channels)
        )
        self.norm1, self.norm2 = nn.LayerNorm(channels, EPSILON), nn.LayerNorm(channels, EPSILON)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return the new vectors `(B, T, D)`."""
        x = self.norm1(x + self.dropout(self.mixer(x)))
        y: Tensor = self.norm2(x + self.dropout(self.mlp(x)))
        return y


class Convolution(nn.Module):
    """Convolution along the tokens. An even kernel covers one more token after a position than before it.

    Args:
        channels: Number of channels D.
        kernel: Number of tokens.
        activation: Activation f.
        residual: If True, compute `f(W x + x)`, as CodeSearchNet does, instead of `f(W x)`.
        dropout: Dropout of the output.

    Shape:
        `(B, T, D)` to the same shape.
    """

    def __init__(
        self, channels: int, kernel: int, *, activation: Activation, residual: bool, dropout: float
    ) -> None:
        super().__init__()
        before = (kernel - 1) // 2
        self.branch = nn.Sequential(
            nn.ConstantPad1d((before, kernel - 1 - before), 0.0), nn.Conv1d(channels, channels, kernel)
        )
        self.activation = ACTIVATIONS[activation]()
        self.residual = residual
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolved vectors `(B, T, channels)`."""
        mask = current_mask(x.shape[0], x.shape[1:2])
        if mask is not None:
            x = x.masked_fill(~mask.unsqueeze(2), 0.0)
        y = self.branch(x.mT).mT
        if self.residual:
            y = y + x
        z: Tensor = self.dropout(self.activation(y))
        return z

    def extra_repr(self) -> str:
        return f"residual={self.residual}"


class Pooling(nn.Module):
    """Pooling of token vectors to one vector. It returns zeros for a text without tokens.

    Args:
        channels: Width D of the vectors.
        pool: `weighted_mean` weights a token by the sigmoid of a learned map of its vector, and divides the
            weights of a text by their sum. `bert` maps the vector of the first token by a dense layer with
            tanh.

    Raises:
        InputError: The pooling is unknown.

    Shape:
        `(B, T, D)` and a mask, bool `(B, T)`, to `(B, D)`.
    """

    def __init__(self, channels: int, pool: Pool) -> None:
        super().__init__()
        if pool not in get_args(Pool):
            raise InputError(f"pooling must be one of {', '.join(get_args(Pool))}; got {pool!r}")
        self.pool = pool
        if pool == "weighted_mean":
            self.weight = nn.Linear(channels, 1, bias=False)
        elif pool == "bert":
            self.dense = nn.Linear(channels, channels)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the pooled vectors `(B, D)` of `x`, `(B, T, D)`, with a mask, bool `(B, T)`."""
        real = mask.unsqueeze(2)  # (B, T, 1)
        if self.pool == "max":
            return x.masked_fill(~real, float("-inf")).amax(1).masked_fill(~real.any(1), 0.0)
        if self.pool in ("first", "bert"):
            first = x[:, 0]
            if self.pool == "bert":
                first = self.dense(first).tanh()
            return first.masked_fill(~real[:, 0], 0.0)
        weights = real.to(x.dtype)
        if self.pool == "weighted_mean":
            weights = weights * self.weight(x).sigmoid()
        total: Tensor = (weights * x).sum(1) / weights.sum(1).clamp(min=torch.finfo(x.dtype).tiny)
        return total

    def extra_repr(self) -> str:
        return self.pool

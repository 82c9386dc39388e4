"""Pooling of the vectors of a text's tokens: weighted mean, mean, maximum, first token, or BERT's pooling.

Source: H. Husain et al., CodeSearchNet Challenge (2019), arXiv 1909.09436, section 4, and its code for the
weights of the weighted mean, which have no bias. BERT's pooling is that of arXiv 1810.04805.
"""

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from automl.base.errors import InputError

Pool = Literal["weighted_mean", "mean", "max", "first", "bert"]


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
            most = x.masked_fill(~real, float("-inf")).amax(1)
            return most.masked_fill(~real.any(1), 0.0)
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

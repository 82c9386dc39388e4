"""Base class of attention with one projection for the queries, keys and values of several heads."""

from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor, nn

from attention.decoding import TokenMixer
from attention.gated import project
from attention.options import Choices
from attention.position import ROTARY_BASE, Encoding, rotate
from automl.base.errors import InputError

HeadCount = Annotated[int, Choices(1, 2, 4, 8)]
NotTried = Annotated[bool, Choices(False)]  # Searches try no causal modules, since no task needs them.


class Heads(TokenMixer):
    """Attention whose heads split the C channels of queries, keys and values.

    Parameter names and initialisation are those of `torch.nn.MultiheadAttention`: one projection with bias
    for queries, keys and values, then the reprojection `out_proj`.

    Args:
        channels: Number of channels C of the features.
        heads: Number of heads. It must divide `channels`.
        causal: Let a position attend only to itself and to earlier ones.
        encoding: Position encoding. `rotate_heads` applies `rotary`, and subclasses apply the others.
        base: Base of rotary encoding.

    Raises:
        InputError: `heads` does not divide `channels`, or the width of a head is odd and `encoding` rotary.
    """

    def __init__(
        self,
        channels: int,
        heads: int,
        causal: bool,
        encoding: Encoding = "none",
        base: float = ROTARY_BASE,
    ) -> None:
        super().__init__(channels, causal)
        if heads < 1 or channels % heads:
            raise InputError(f"heads must divide the channels: {channels} channels, {heads} heads")
        if encoding == "rotary" and channels // heads % 2:
            raise InputError(
                f"rotary encoding needs heads of an even width; got {channels // heads} channels a head. "
                f"Choose another number of heads or another encoding"
            )
        self.heads, self.encoding, self.base = heads, encoding, base
        self.in_proj = nn.Linear(channels, 3 * channels)
        self.out_proj = nn.Linear(channels, channels)
        nn.init.xavier_uniform_(self.in_proj.weight)
        nn.init.zeros_(self.in_proj.bias)
        nn.init.zeros_(self.out_proj.bias)

    def split_heads(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values `(B, heads, N, d)` from their projection `(B, N, 3C)`."""
        q, k, v = qkv.unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        return q, k, v

    def check_extents(self, spatial: Sequence[int]) -> None:
        if self.encoding == "rotary" and len(spatial) != 1:
            raise InputError(
                f"rotary encoding takes features with one spatial dimension, such as tokens; got "
                f"{len(spatial)}. Choose another encoding"
            )

    def rotate_heads(self, q: Tensor, k: Tensor, start: Tensor | int = 0) -> tuple[Tensor, Tensor]:
        """Return queries and keys at the positions from `start` on, rotated if the encoding is rotary."""
        if self.encoding != "rotary":
            return q, k
        positions = torch.arange(q.shape[-2], device=q.device) + start
        return rotate(q, positions, self.base), rotate(k, positions, self.base)

    def join_heads(self, update: Tensor) -> Tensor:
        """Return the reprojection `(B, N, C)` of the heads' values `(B, heads, N, d)`."""
        return project(self.out_proj, update.transpose(1, 2).flatten(2))


def parameters(channels: int) -> int:
    """Return the number of parameters of `Heads`."""
    return 4 * channels * channels + 4 * channels + 1

"""Multi-head attention over positions: `y = x + gamma * P concat_i softmax(q_i k_i^T / sqrt(d)) v_i`.

Source: A. Vaswani et al., Attention Is All You Need (2017), arXiv 1706.03762, section 3.2.2, inside the gate
of SAGAN. Parameter names and initialisation are those of `torch.nn.MultiheadAttention`: one projection with
bias for queries, keys and values, then the reprojection `out_proj`.
"""

from collections.abc import Sequence
from math import prod
from typing import get_args

import torch.nn.functional as F
from torch import Tensor, nn

from attention.attention_map import AttentionMap, softmax_map
from attention.errors import InputError
from attention.gated import Cost, Gated, project
from attention.position import AXES, BUCKETS, Encoding, RelativeBias, sinusoids


class MultiHeadAttention(Gated):
    """Multi-head attention over positions.

    Args:
        channels: Number of channels C of the features.
        heads: Number of heads. It must divide `channels`.
        encoding: Position encoding. `none` adds none, since earlier convolutions encode positions. `absolute`
            adds sinusoids to the input of queries and keys. `relative` adds a learned bias by the offset of
            query and key.

    Raises:
        InputError: `heads` does not divide `channels`, or the encoding is unknown.

    Shape:
        `(B, C, *spatial)` to the same shape, or `(B, *spatial, C)` if `layout` is `B*C`.
    """

    def __init__(self, channels: int, *, heads: int = 4, encoding: Encoding = "none") -> None:
        super().__init__(channels)
        if heads < 1 or channels % heads:
            raise InputError(f"heads must divide the channels: {channels} channels, {heads} heads")
        if encoding not in get_args(Encoding):
            raise InputError(f"encoding must be one of {', '.join(get_args(Encoding))}; got {encoding!r}")
        self.heads, self.encoding = heads, encoding
        self.in_proj = nn.Linear(channels, 3 * channels)
        self.out_proj = nn.Linear(channels, channels)
        if encoding == "relative":
            self.bias = RelativeBias(heads)
        nn.init.xavier_uniform_(self.in_proj.weight)
        nn.init.zeros_(self.in_proj.bias)
        nn.init.zeros_(self.out_proj.bias)

    def attend(self, x: Tensor, mask: Tensor | None, spatial: Sequence[int]) -> Tensor:
        q, k, v = self._heads(x, spatial)
        logit_mask = None if mask is None else mask[:, None, None]  # (B, 1, 1, N)
        if self.encoding == "relative":
            bias = self.bias(spatial).to(q.dtype)  # (heads, N, N)
            logit_mask = bias[None] if logit_mask is None else bias.masked_fill(~logit_mask, float("-inf"))
        update = F.scaled_dot_product_attention(q, k, v, attn_mask=logit_mask)
        return project(self.out_proj, update.transpose(1, 2).flatten(2))  # (B, N, C)

    def attention_map(self, x: Tensor, mask: Tensor | None, spatial: Sequence[int]) -> AttentionMap:
        q, k, _ = self._heads(x, spatial)
        bias = self.bias(spatial).to(q.dtype) if self.encoding == "relative" else None
        return softmax_map(q / q.shape[-1] ** 0.5, k, spatial=spatial, mask=mask, bias=bias)

    def _heads(self, x: Tensor, spatial: Sequence[int]) -> Sequence[Tensor]:
        """Return queries, keys and values, `(B, heads, N, d)`."""
        qkv = project(self.in_proj, x)  # (B, N, 3C)
        # The projection is linear, so that of the sinusoids is added to that of x.
        if self.encoding == "absolute":
            weight = self.in_proj.weight[: 2 * self.channels].to(qkv.dtype)
            encoded = F.linear(sinusoids(spatial, self.channels, qkv), weight)  # (N, 2C)
            qkv = qkv + F.pad(encoded, (0, self.channels))
        parts: Sequence[Tensor] = qkv.unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        return parts


def cost(channels: int, spatial: Sequence[int], *, heads: int = 4, encoding: Encoding = "none") -> Cost:
    """Compute the cost of one `MultiHeadAttention`."""
    C, N = channels, prod(spatial)
    absolute, relative = (encoding == name for name in ("absolute", "relative"))
    return Cost(
        parameters=4 * C * C + 4 * C + 1 + relative * AXES * BUCKETS * heads,
        macs=4 * N * C * C + 2 * N * N * C + absolute * 2 * N * C * C,
        # q, k, v, the mixed values, the update, and the log-sum-exp. A learned bias keeps all weights
        # instead.
        memory=5 * N * C + (N if relative else 1) * N * heads,
    )

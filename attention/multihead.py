"""Multi-head attention over positions: `y = x + gamma * P concat_i softmax(q_i k_i^T / sqrt(d)) v_i`.

Source: A. Vaswani et al., Attention Is All You Need (2017), arXiv 1706.03762, section 3.2.2, with the
gate of SAGAN around it. Parameter names and initialisation are those of `torch.nn.MultiheadAttention`
(queries, keys and values in one projection with bias, then the reprojection `out_proj`).
"""

from collections.abc import Sequence
from typing import get_args

import torch.nn.functional as F
from torch import Tensor, nn

from attention.errors import InputError
from attention.gated import Cost, Gated, project
from attention.position import AXES, BUCKETS, Encoding, RelativeBias, sinusoids


class MultiHeadAttention(Gated):
    """Multi-head attention over `channels` channels; `heads` must divide them.

    encoding: what it is told of positions. `none`: nothing, as convolutions before it know where they are.
        `absolute`: sinusoids are added to what queries and keys are made of. `relative`: a learned bias by
        the offset of query and key.
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
        qkv = project(self.in_proj, x)  # (B, N, 3C)
        if self.encoding == "absolute":  # a projection is linear: that of the sinusoids is added to that of x
            weight = self.in_proj.weight[: 2 * self.channels].to(qkv.dtype)
            where = F.linear(sinusoids(spatial, self.channels, qkv), weight)  # (N, 2C)
            qkv = qkv + F.pad(where, (0, self.channels))
        q, k, v = qkv.unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()  # (B, heads, N, d)
        added = None if mask is None else mask[:, None, None]  # (B, 1, 1, N)
        if self.encoding == "relative":
            bias = self.bias(spatial).to(q.dtype)  # (heads, N, N)
            added = bias[None] if added is None else bias.masked_fill(~added, float("-inf"))
        update = F.scaled_dot_product_attention(q, k, v, attn_mask=added)
        return project(self.out_proj, update.transpose(1, 2).flatten(2))  # (B, N, C)


def cost(channels: int, positions: int, *, heads: int = 4, encoding: Encoding = "none") -> Cost:
    C, N = channels, positions
    absolute, relative = (encoding == name for name in ("absolute", "relative"))
    return Cost(
        parameters=4 * C * C + 4 * C + 1 + relative * AXES * BUCKETS * heads,
        macs=4 * N * C * C + 2 * N * N * C + absolute * 2 * N * C * C,
        # q k v, the mixed values, the update; and the log-sum-exp, or with a learned bias all weights
        memory=5 * N * C + (N if relative else 1) * N * heads,
    )

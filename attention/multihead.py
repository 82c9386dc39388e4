"""Multi-head attention over positions: `y = x + gamma * P concat_i softmax(q_i k_i^T / sqrt(d)) v_i`.

Source: A. Vaswani et al., Attention Is All You Need (2017), arXiv 1706.03762, section 3.2.2, with the
gate of SAGAN around it. Parameter names and initialisation are those of `torch.nn.MultiheadAttention`
(queries, keys and values in one projection with bias, then the reprojection `out_proj`). No
positional encoding: the trunk's convolutions know where they are.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from attention.errors import InputError
from attention.gated import Cost, Gated, project


class MultiHeadAttention(Gated):
    """Multi-head attention over `channels` channels; `heads` must divide them."""

    def __init__(self, channels: int, *, heads: int = 4) -> None:
        super().__init__(channels)
        if heads < 1 or channels % heads:
            raise InputError(f"heads must divide the channels: {channels} channels, {heads} heads")
        self.heads = heads
        self.in_proj = nn.Linear(channels, 3 * channels)
        self.out_proj = nn.Linear(channels, channels)
        nn.init.xavier_uniform_(self.in_proj.weight)
        nn.init.zeros_(self.in_proj.bias)
        nn.init.zeros_(self.out_proj.bias)

    def attend(self, x: Tensor, mask: Tensor | None) -> Tensor:
        qkv = project(self.in_proj, x)  # (B, N, 3C)
        q, k, v = qkv.unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()  # (B, heads, N, d)
        keys = None if mask is None else mask[:, None, None]  # (B, 1, 1, N)
        update = F.scaled_dot_product_attention(q, k, v, attn_mask=keys)
        return project(self.out_proj, update.transpose(1, 2).flatten(2))  # (B, N, C)


def cost(channels: int, positions: int, *, heads: int = 4) -> Cost:
    C, N = channels, positions
    return Cost(
        parameters=4 * C * C + 4 * C + 1,
        macs=4 * N * C * C + 2 * N * N * C,
        memory=5 * N * C + N * heads,  # q k v, the mixed values, the update and the log-sum-exp
    )

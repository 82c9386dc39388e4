"""Linear attention: `y = x + gamma * P concat_h (phi(q) sum_j phi(k_j)^T v_j) / (phi(q) . sum_j phi(k_j))`.

Source: A. Katharopoulos et al., Transformers are RNNs: Fast Autoregressive Transformers with Linear Attention
(2020), arXiv 2006.16236, equations 4 to 9, with phi(x) = elu(x) + 1. Keys and values are multiplied first, so
time and memory are linear in the positions. If it is causal, j runs over the positions up to that of the
query.

Departure from the authors' code: a tiny bound instead of an added 1e-6 keeps the denominator from zero.
"""

from collections.abc import Sequence
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from attention.attention_map import AttentionMap, outside
from attention.gated import Cost, project
from attention.heads import HeadCount, Heads, NotTried, parameters
from attention.prefix_sums import CHUNK, causal_sums, sums_cost


class LinearAttention(Heads):
    """Linear attention, with elu + 1 in place of the softmax's exponential.

    Args:
        channels: Number of channels C of the features.
        heads: Number of heads. It must divide `channels`.
        causal: Let a position attend only to itself and to earlier ones.

    Raises:
        InputError: `heads` does not divide `channels`.

    Shape:
        `(B, C, *spatial)` to the same shape, or `(B, *spatial, C)` if `layout` is `B*C`.
    """

    sums_over_positions = True

    def __init__(self, channels: int, *, heads: HeadCount = 4, causal: NotTried = False) -> None:
        super().__init__(channels, heads, causal)

    def attend(self, x: Tensor, mask: Tensor | None, spatial: Sequence[int]) -> Tensor:
        q, k, v = self._heads(x, mask)
        v = F.pad(v, (0, 1), value=1.0)  # A channel of ones sums the weights.
        sums = causal_sums(q, k, v) if self.causal else q @ (k.mT @ v)  # (B, heads, N, d + 1)
        update, weight = sums[..., :-1], sums[..., -1:]
        return self.join_heads(update / _above_zero(weight))

    def attention_map(self, x: Tensor, mask: Tensor | None, spatial: Sequence[int]) -> AttentionMap:
        q, k, _ = self._heads(x, mask)

        def rows(index: Tensor) -> Tensor:
            weights = q[:, :, index] @ k.mT
            if self.causal:
                weights = weights.masked_fill(outside(index, weights, mask), 0)
            return weights / _above_zero(weights.sum(-1, keepdim=True))

        return AttentionMap(kind="positions", spatial=spatial, mask=mask, compute_rows=rows)

    def _heads(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return phi of queries and keys, and values, `(B, heads, N, d)`."""
        q, k, v = self.split_heads(project(self.in_proj, x))
        q, k = F.elu(q) + 1, F.elu(k) + 1
        if mask is not None:  # A masked key adds nothing to either sum.
            k = k.masked_fill(~mask[:, None, :, None], 0)
        return q, k, v


def _above_zero(x: Tensor) -> Tensor:
    return x.clamp(min=torch.finfo(x.dtype).tiny)


def cost(channels: int, spatial: Sequence[int], *, heads: int = 4, causal: bool = False) -> Cost:
    """Compute the cost of one `LinearAttention`."""
    C, N = channels, prod(spatial)
    values = C + heads  # with a channel of ones in each head
    if causal:
        macs, memory = sums_cost(N, C, values, heads, softmax=False)
        memory += -(-N // CHUNK) * CHUNK * values  # The sums, with padding.
    else:  # phi(q), phi(k), v, the context, and the sums.
        macs, memory = 2 * N * C * values // heads, 2 * N * (C + values) + C * values // heads
    return Cost(
        parameters=parameters(C),
        macs=4 * N * C * C + macs,
        memory=memory
        + 5 * N * C
        + N * heads,  # With q, k and v, the weights, the mixed values and the update.
    )

"""Linear attention: `y = x + gamma * P concat_h (phi(q) sum_j phi(k_j)^T v_j) / (phi(q) . sum_j phi(k_j))`.

Source: A. Katharopoulos et al., Transformers are RNNs: Fast Autoregressive Transformers with Linear Attention
(2020), arXiv 2006.16236, equations 4 to 9, with phi(x) = elu(x) + 1. Keys and values are multiplied first, so
time and memory are linear in the positions. If it is causal, j runs over the positions up to that of the
query.

Departure from the authors' code: a tiny bound instead of an added 1e-6 keeps the denominator from zero.
"""

from collections.abc import Sequence
from math import prod
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from attention.attention_map import AttentionMap, outside
from attention.decoding import State
from attention.gated import Cost, project
from attention.multihead import HeadCount, Heads, Norm, norm_memory, parameters
from attention.options import Choices, NotTried, OptionValue
from attention.prefix_sums import CHUNK, causal_sums, last_sums, next_sums, sums_cost


class LinearAttention(Heads):
    """Linear attention, with elu + 1 in place of the softmax's exponential.

    Args:
        channels: Number of channels C of the features.
        heads: Number of heads. It must divide `channels`.
        causal: Let a position attend only to itself and to earlier ones.
        norm: RMS norms of queries and keys: `none`, `head` as in Qwen3, or `all` heads together as in OLMo 2.

    Raises:
        InputError: `heads` does not divide `channels`, or the norm is unknown.

    Shape:
        `(B, C, *spatial)` to the same shape, or `(B, *spatial, C)` if `layout` is `B*C`.
    """

    sums_over_positions = True

    def __init__(
        self,
        channels: int,
        *,
        heads: HeadCount = 4,
        causal: NotTried = False,
        norm: Annotated[Norm, Choices("none")] = "none",
    ) -> None:
        super().__init__(channels, heads, causal, norm=norm)

    def attend(self, x: Tensor, mask: Tensor | None, spatial: Sequence[int]) -> Tensor:
        q, k, v = self._with_ones(x, mask)
        return self._join(causal_sums(q, k, v) if self.causal else q @ (k.mT @ v))

    def begin(self, x: Tensor) -> tuple[Tensor, State]:
        q, k, v = self._with_ones(x)
        return self._join(causal_sums(q, k, v)), (last_sums(k, v),)

    def advance(self, x: Tensor, state: State, position: Tensor) -> tuple[Tensor, State]:
        sums, new = next_sums(*self._with_ones(x), *state)
        return self._join(sums), (new,)

    def _with_ones(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return `_heads` with a channel of ones in the values, which sums the weights."""
        q, k, v = self._heads(x, mask)
        return q, k, F.pad(v, (0, 1), value=1.0)

    def _join(self, sums: Tensor) -> Tensor:
        """Return the update `(B, N, C)` from values and weights, summed, `(B, heads, N, d + 1)`."""
        return self.join_heads(sums[..., :-1] / _above_zero(sums[..., -1:]))

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


def cost(
    channels: int, spatial: Sequence[int], *, heads: int = 4, causal: bool = False, norm: Norm = "none"
) -> Cost:
    """Compute the cost of one `LinearAttention`."""
    C, N = channels, prod(spatial)
    values = C + heads  # with a channel of ones in each head
    if causal:
        macs, memory = sums_cost(N, C, values, heads, softmax=False)
        memory += -(-N // CHUNK) * CHUNK * values  # The sums, with padding.
    else:  # phi(q), phi(k), v, the context, and the sums.
        macs, memory = 2 * N * C * values // heads, 2 * N * (C + values) + C * values // heads
    memory += norm_memory(C, N, heads, norm)
    memory += 5 * N * C + N * heads  # With q, k and v, the weights, the mixed values and the update.
    return Cost(parameters=parameters(C, heads, norm), macs=4 * N * C * C + macs, memory=memory)


def state(channels: int, context: int, *, heads: int = 4, **options: OptionValue) -> int:
    """Compute the number of values that one sequence keeps while decoding: keys times values and ones."""
    return channels * (channels // heads + 1)

"""Decomposed (efficient) attention: `y = x + gamma * P rho_q(Q) (rho_k(K)^T V)`, linear in the positions.

Source: Z. Shen et al., Efficient Attention: Attention with Linear Complexities (2018), arXiv 1812.01243,
equations 2 to 6. Keys and values are multiplied first, to a small d_k x d_v context that every query reads.
The N x N weights `rho_q(Q) rho_k(K)^T` are implied but never computed.

Normalisations:

- `softmax` normalises the queries over their channels and the keys over the positions. The implied weights
  are then non-negative and sum to one.
- `scaling` divides each of Q and K by sqrt(N). The result equals dot-product attention divided by N, as in
  the paper.
- `scaling-keys` divides each of Q and K by d_k^(1/4). The result equals dot-product attention divided by
  sqrt(d_k), as in the authors' blog.
- `none` changes nothing.

The outputs of the last two grow with N. Several heads split the channels of keys and values; d_k is the width
of one head. The reprojection P returns to C channels.

A causal module sums over the positions up to that of the query, and so do its normalisations: keys are
normalised over these positions, and `scaling` divides by their number. The sums are carried from one chunk of
positions to the next, so the module stays linear in the positions.
"""

from collections.abc import Sequence
from math import prod
from typing import Literal

import torch
from torch import Tensor, nn

from attention.attention_map import AttentionMap, outside
from attention.decoding import State, TokenMixer
from attention.gated import Cost, project
from attention.options import OptionValue, check_choice
from attention.prefix_sums import (
    MASKED,
    causal_softmax_sums,
    causal_sums,
    last_softmax_sums,
    last_sums,
    next_softmax_sums,
    next_sums,
    sums_cost,
)
from automl.base.errors import InputError

Normalisation = Literal["softmax", "scaling", "scaling-keys", "none"]


class DecomposedAttention(TokenMixer):
    """Decomposed attention, linear in the number of positions.

    Args:
        channels: Number of channels C of the features.
        normalisation: `softmax` over the channels of queries and the positions of keys; `scaling` by the
            number of positions; `scaling-keys` by the square root of a head's key channels; or `none`.
        key_channels: Width of keys and queries. Half of `channels` by default.
        value_channels: Width of values. Half of `channels` by default.
        heads: Number of heads. It must divide `key_channels` and `value_channels`.
        causal: Let a position attend only to itself and to earlier ones.

    Raises:
        InputError: The normalisation is unknown, or `heads` does not divide the widths.

    Shape:
        `(B, C, *spatial)` to the same shape, or `(B, *spatial, C)` if `layout` is `B*C`.
    """

    sums_over_positions = True

    def __init__(
        self,
        channels: int,
        *,
        normalisation: Normalisation = "softmax",
        key_channels: int | None = None,
        value_channels: int | None = None,
        heads: int = 1,
        causal: bool = False,
    ) -> None:
        super().__init__(channels, causal)
        check_choice("normalisation", normalisation, Normalisation)
        keys, values = widths(channels, key_channels, value_channels)
        if min(heads, keys, values) < 1 or keys % heads or values % heads:
            raise InputError(
                f"heads must divide key_channels and value_channels: got {heads} heads, {keys} key and "
                f"{values} value channels"
            )
        self.normalisation, self.heads = normalisation, heads
        self.query = nn.Linear(channels, keys)
        self.key = nn.Linear(channels, keys)
        self.value = nn.Linear(channels, values)
        self.reprojection = nn.Linear(values, channels)

    def attend(self, x: Tensor, mask: Tensor | None, spatial: Sequence[int]) -> Tensor:
        q, k = self._queries_and_keys(x, mask)
        v = self._heads(project(self.value, x))
        return self._join(self._causal_sums(q, k, v) if self.causal else q @ (k.mT @ v))

    def begin(self, x: Tensor) -> tuple[Tensor, State]:
        q, k = self._queries_and_keys(x, None)
        v = self._heads(project(self.value, x))
        softmax = self.normalisation == "softmax"
        return self._join(self._causal_sums(q, k, v)), (
            last_softmax_sums(k, v) if softmax else (last_sums(k, v),)
        )

    def advance(self, x: Tensor, state: State, position: Tensor) -> tuple[Tensor, State]:
        q, k = self._queries_and_keys(x, None, position)
        v = self._heads(project(self.value, x))
        if self.normalisation == "softmax":
            update, state = next_softmax_sums(q, k, v, *state)
        else:
            update, sums = next_sums(q, k, v, *state)
            state = (sums,)
        return self._join(update), state

    def attention_map(self, x: Tensor, mask: Tensor | None, spatial: Sequence[int]) -> AttentionMap:
        q, k = self._queries_and_keys(x, mask)
        softmax = self.causal and self.normalisation == "softmax"
        maps = (k.softmax(dim=-2) if softmax else k).mT  # (B, heads, d_k, N)

        def rows(index: Tensor) -> Tensor:
            if softmax:  # The maps of the last position, normalised over those that the query sees.
                total = maps.cumsum(-1)[..., index].clamp(min=torch.finfo(maps.dtype).tiny)
                weights = (q[:, :, index] / total.mT) @ maps
            else:
                weights = q[:, :, index] @ maps
            return weights.masked_fill(outside(index, weights, mask), 0) if self.causal else weights

        return AttentionMap(kind="global", spatial=spatial, mask=mask, stored=maps, compute_rows=rows)

    def _causal_sums(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (causal_softmax_sums if self.normalisation == "softmax" else causal_sums)(q, k, v)

    def _join(self, update: Tensor) -> Tensor:
        """Return the reprojection `(B, N, C)` of the heads' values `(B, heads, N, d_v)`."""
        return project(self.reprojection, update.transpose(1, 2).flatten(2))

    def _queries_and_keys(
        self, x: Tensor, mask: Tensor | None, start: Tensor | int = 0
    ) -> tuple[Tensor, Tensor]:
        """Return queries and keys of the positions from `start` on, not normalised if the keys are causal."""
        q, k = (self._heads(project(layer, x)) for layer in (self.query, self.key))
        softmax = self.normalisation == "softmax"
        if mask is not None:  # A masked key adds nothing to the context.
            k = k.masked_fill(~mask[:, None, :, None], MASKED if softmax else 0.0)
        if softmax:
            q, k = q.softmax(dim=-1), k if self.causal else k.softmax(dim=-2)
        elif self.normalisation == "scaling" and self.causal:
            visible = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if mask is None else mask
            q = q / (visible.cumsum(1) + start).clamp(min=1)[:, None, :, None]
        elif self.normalisation == "scaling":
            root = x.shape[1] ** 0.5 if mask is None else mask.sum(1).to(x.dtype).sqrt().view(-1, 1, 1, 1)
            q, k = q / root, k / root
        elif self.normalisation == "scaling-keys":
            root = q.shape[-1] ** 0.25
            q, k = q / root, k / root
        return q, k

    def _heads(self, x: Tensor) -> Tensor:
        heads: Tensor = x.unflatten(2, (self.heads, -1)).transpose(1, 2)  # (B, heads, N, d)
        return heads


def widths(channels: int, key_channels: int | None, value_channels: int | None) -> tuple[int, int]:
    """Return key and value channels. Half of `channels` (at least one) replaces None."""
    half = max(1, channels // 2)
    return (
        half if key_channels is None else key_channels,
        half if value_channels is None else value_channels,
    )


def cost(
    channels: int,
    spatial: Sequence[int],
    *,
    normalisation: Normalisation = "softmax",
    key_channels: int | None = None,
    value_channels: int | None = None,
    heads: int = 1,
    causal: bool = False,
) -> Cost:
    """Compute the cost of one `DecomposedAttention`."""
    C, N = channels, prod(spatial)
    dk, dv = widths(C, key_channels, value_channels)
    softmax = normalisation == "softmax"
    if causal:
        macs, memory = sums_cost(N, dk, dv, heads, softmax=softmax)
        memory += softmax * N * dk + (normalisation == "scaling") * N  # Normalised q, or its divisor.
    else:  # Normalised q and k, v, and the context.
        macs, memory = 2 * N * dk * dv // heads, 2 * N * dk + N * dv + dk * dv // heads
    return Cost(
        parameters=2 * dk * (C + 1) + dv * (C + 1) + C * (dv + 1) + 1,
        macs=2 * N * C * (dk + dv) + macs,
        memory=memory + N * dv + N * C,  # With the mixed values and the update.
    )


def state(
    channels: int,
    context: int,
    *,
    normalisation: Normalisation = "softmax",
    key_channels: int | None = None,
    value_channels: int | None = None,
    heads: int = 1,
    **options: OptionValue,
) -> int:
    """Compute the number of values that one sequence keeps while decoding: the context and its softmax."""
    dk, dv = widths(channels, key_channels, value_channels)
    return dk * dv // heads + (normalisation == "softmax") * dk

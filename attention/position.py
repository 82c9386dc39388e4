"""What attention is told of where its positions are, at any resolution."""

from collections.abc import Sequence
from math import ceil
from typing import Literal

import torch
from torch import Tensor, nn

Encoding = Literal["none", "absolute", "relative"]

AXES = 3  # spatial ones, at most
EXACT = 8  # distances below this one have a bucket of their own
FARTHEST = 128  # from here on there is one bucket
# The shortest distance of every bucket but the first one: 1, 2, ... 8, then ever wider ones.
EDGES = [*range(1, EXACT), *(ceil(EXACT * (FARTHEST / EXACT) ** (k / EXACT)) for k in range(EXACT))]
BUCKETS = 2 * (len(EDGES) + 1)  # before and behind


def sinusoids(spatial: Sequence[int], channels: int, like: Tensor) -> Tensor:
    """Sines and cosines of the coordinates: `(N, channels)`, in the dtype and on the device of `like`.

    Every axis has its share of the channels, as in arXiv 2005.12872, appendix A.4; what remains is zero.
    Source: arXiv 1706.03762, section 3.5.
    """
    width = channels // len(spatial) // 2  # of the sines of one axis, and of its cosines
    precise = torch.promote_types(like.dtype, torch.float32)
    rates = 10_000 ** (-torch.arange(width, device=like.device, dtype=precise) / max(1, width))
    parts = []
    for axis, length in enumerate(spatial):
        angles = torch.arange(length, device=like.device, dtype=precise)[:, None] * rates
        shape = [1] * len(spatial) + [2 * width]
        shape[axis] = length
        parts.append(torch.cat([angles.sin(), angles.cos()], dim=1).view(shape).expand(*spatial, -1))
    rest = channels - 2 * width * len(spatial)
    parts.append(torch.zeros(1, device=like.device).expand(*spatial, rest))
    return torch.cat(parts, dim=-1).flatten(0, -2).to(like.dtype)


class RelativeBias(nn.Module):
    """A learned bias of each head's logits by the offset of key and query along every axis, summed over axes.

    Offsets share buckets, logarithmically from 8 to 128 positions, so that one table fits every resolution.
    Source: arXiv 1910.10683, section 2.1. Zero when new.
    """

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(AXES, BUCKETS, heads))

    def forward(self, spatial: Sequence[int]) -> Tensor:
        """The bias at `spatial`: `(heads, N, N)`, of queries and then of keys."""
        axes = len(spatial)
        total: Tensor | None = None
        for axis, length in enumerate(spatial):
            bias = self.table[axis][buckets(length, self.table.device)].permute(2, 0, 1)  # (heads, L, L)
            shape = [1] * (2 * axes)
            shape[axis] = shape[axes + axis] = length
            bias = bias.reshape(-1, *shape)
            total = bias if total is None else total + bias
        assert total is not None
        return total.flatten(1 + axes).flatten(1, axes)


def buckets(length: int, device: torch.device) -> Tensor:
    """The bucket of every pair of query and key along one axis: int64 `(length, length)`."""
    place = torch.arange(length, device=device)
    offset = place[None, :] - place[:, None]
    near = (offset.abs()[..., None] >= torch.tensor(EDGES, device=device)).sum(-1)
    return near + (offset > 0) * (BUCKETS // 2)

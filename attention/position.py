"""Position encodings for attention, at any resolution."""

from collections.abc import Sequence
from math import ceil
from typing import Literal

import torch
from torch import Tensor, nn

Encoding = Literal["none", "absolute", "relative", "rotary"]

ROTARY_BASE = 10_000.0

AXES = 3  # Maximum number of spatial axes.
EXACT = 8  # Distances below this have a bucket each.
FARTHEST = 128  # Distances from here share one bucket.
# Smallest distance of each bucket but the first: 1, 2, ... 8, then at growing intervals.
EDGES = [*range(1, EXACT), *(ceil(EXACT * (FARTHEST / EXACT) ** (k / EXACT)) for k in range(EXACT))]
BUCKETS = 2 * (len(EDGES) + 1)  # For keys before and behind the query.


def sinusoids(spatial: Sequence[int], channels: int, like: Tensor, start: Tensor | int = 0) -> Tensor:
    """Compute sines and cosines of the coordinates, `(N, C)`, in the dtype and on the device of `like`.

    Each axis gets an equal number of channels, as in arXiv 2005.12872, appendix A.4. The remaining channels
    are zero. Each axis begins at the coordinate `start`. Source: arXiv 1706.03762, section 3.5.
    """
    width = channels // len(spatial) // 2  # Number of sines, and of cosines, of one axis.
    precise = torch.promote_types(like.dtype, torch.float32)
    rates = 10_000 ** (-torch.arange(width, device=like.device, dtype=precise) / max(1, width))
    encodings = []
    for axis, length in enumerate(spatial):
        angles = (torch.arange(length, device=like.device, dtype=precise) + start)[:, None] * rates
        shape = [1] * len(spatial) + [2 * width]
        shape[axis] = length
        encodings.append(torch.cat([angles.sin(), angles.cos()], dim=1).view(shape).expand(*spatial, -1))
    rest = channels - 2 * width * len(spatial)
    encodings.append(torch.zeros(1, device=like.device).expand(*spatial, rest))
    return torch.cat(encodings, dim=-1).flatten(0, -2).to(like.dtype)


def rotate(x: Tensor, positions: Tensor, base: float = ROTARY_BASE, factors: Tensor | float = 1.0) -> Tensor:
    """Rotate pairs of channels by angles that grow with the position, for rotary position encoding.

    The product of a rotated query and a rotated key depends on their offset. Channels c and c + d / 2 are a
    pair, as in the code of Llama. Source: J. Su et al., RoFormer (2021), arXiv 2104.09864, equation 34.

    Args:
        x: Queries or keys `(B, heads, N, d)` with an even d.
        positions: Positions `(N,)`, or one position without dimensions.
        base: Base of the wavelengths. The longest is nearly 2 pi times as many positions.
        factors: Factors of the angles of all pairs, `(d / 2,)`, where a model scales its positions.
    """
    precise = torch.promote_types(x.dtype, torch.float32)
    return turn(x, *turns(positions.to(precise), x.shape[-1], base, factors))


def turns(
    positions: Tensor, width: int, base: float = ROTARY_BASE, factors: Tensor | float = 1.0
) -> tuple[Tensor, Tensor]:
    """Return the cosines and signed sines of `rotate` at floating-point positions, each `(N, width)`."""
    angles = positions[..., None] * (rates(width, base, positions) * factors)  # (N, d / 2)
    cosine, sine = angles.cos(), angles.sin()
    return torch.cat([cosine, cosine], dim=-1), torch.cat([-sine, sine], dim=-1)


def rates(width: int, base: float, like: Tensor) -> Tensor:
    """Return the angle of each pair of channels at position 1, `(width / 2,)`."""
    half = width // 2
    powers: Tensor = base ** (-torch.arange(half, device=like.device, dtype=like.dtype) / half)
    return powers


def turn(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate queries or keys `(B, heads, N, d)` by the result of `turns` for their positions."""
    half = x.shape[-1] // 2
    # A product of `x` keeps its order in memory.
    return x * cosine.to(x.dtype) + x.roll(half, dims=-1) * sine.to(x.dtype)


class RelativeBias(nn.Module):
    """Learned bias of each head's logits by the offset of key and query along each axis, summed over axes.

    Offsets share buckets, logarithmically from 8 to 128 positions, so that one table fits every resolution. A
    new bias is zero. Source: arXiv 1910.10683, section 2.1.

    Args:
        heads: Number of heads.
    """

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(AXES, BUCKETS, heads))

    def forward(self, spatial: Sequence[int]) -> Tensor:
        """Return the bias `(heads, N, N)` of queries and keys on a feature map of extents `spatial`."""
        axes = len(spatial)
        total: Tensor | None = None
        for axis, length in enumerate(spatial):
            at = torch.arange(length, device=self.table.device)
            bias = self.table[axis][buckets(at - at[:, None])].permute(2, 0, 1)  # (heads, L, L)
            shape = [1] * (2 * axes)
            shape[axis] = shape[axes + axis] = length
            bias = bias.reshape(-1, *shape)
            total = bias if total is None else total + bias
        assert total is not None
        return total.flatten(1 + axes).flatten(1, axes)

    def of_last(self, length: int) -> Tensor:
        """Return the bias `(heads, 1, N)` of the last of N positions along one axis."""
        offset = torch.arange(length, device=self.table.device) - (length - 1)
        return self.table[0][buckets(offset)].mT[:, None]


def buckets(offset: Tensor) -> Tensor:
    """Return the bucket of each offset of a key from its query along one axis, int64 of the same shape."""
    near = (offset.abs()[..., None] >= torch.tensor(EDGES, device=offset.device)).sum(-1)
    return near + (offset > 0) * (BUCKETS // 2)

"""Positions in blocks of one size. Exports work for any number of positions."""

import torch
from torch import Tensor


def split(x: Tensor, size: int) -> Tensor:
    """Split positions `(..., N, d)` into blocks `(..., blocks, size, d)`.

    The last position is repeated until the last block is full.
    """
    N = x.shape[-2]
    if isinstance(N, torch.SymInt):
        # An export cannot reshape an unknown length, and treats a single block differently from several.
        starts = torch.arange(N // size + 2, device=x.device)[:, None] * size
        return x[..., (starts + torch.arange(size, device=x.device)).clamp(max=N - 1), :]
    if missing := -N % size:
        x = torch.cat([x, x[..., -1:, :].expand(*x.shape[:-2], missing, -1)], dim=-2)
    blocks: Tensor = x.contiguous().unflatten(-2, (-1, size))  # Products then need no copies of their own.
    return blocks


def join(blocks: Tensor, positions: int) -> Tensor:
    """Return the first `positions` positions of `(..., blocks, size, d)` as `(..., N, d)`."""
    x = blocks.flatten(-3, -2)
    if isinstance(positions, torch.SymInt):
        return x[..., torch.arange(positions, device=x.device), :]
    return x[..., :positions, :]


def shift(blocks: Tensor, by: int, value: float = 0.0) -> Tensor:
    """Move `(..., blocks, size, d)` by 1 or -1 blocks. A block of `value` replaces the missing one."""
    return torch.nn.functional.pad(blocks, (0, 0, 0, 0, by, -by), value=value)

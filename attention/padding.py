"""Passes a padding mask to the attention modules inside a model.

A module at a site receives only the features. A model whose inputs differ in length sets the mask around the
layers of one resolution:

    with padding(mask):          # (B, N), at this resolution
        x = self.stage(x)        # every attention module in here attends only to real positions
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import local

from torch import Tensor, zeros_like

_state = local()


@contextmanager
def padding(mask: Tensor | None) -> Iterator[None]:
    """Mask positions, bool `(B, *spatial)`, False at padding, for attention modules within the context."""
    before = getattr(_state, "mask", None)
    _state.mask = mask
    try:
        yield
    finally:
        _state.mask = before


def is_padding() -> bool:
    """Return whether the call is inside a `padding` context with a mask."""
    return getattr(_state, "mask", None) is not None


def current_mask(batch: int, spatial: Sequence[int]) -> Tensor | None:
    """Return the mask of the enclosing `padding` context, bool `(B, N)`, for features of these extents.

    It is True at real positions, and None outside of `padding` or without padding. Raises `ValueError` if the
    mask has another shape than `(batch, *spatial)`.
    """
    mask: Tensor | None = getattr(_state, "mask", None)
    if mask is None:
        return None
    if tuple(mask.shape) != (batch, *spatial):
        raise ValueError(
            f"the padding mask is of shape {tuple(mask.shape)}; the features have {(batch, *spatial)}"
        )
    return mask.flatten(1)


def gather_real(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Move the real positions of each row together, for modules to which the distance of positions matters.

    Returns the real positions and then zeros, `(B, N, C)`, and the new index of each position, int64
    `(B, N, C)`. `gather(1, ranks)` moves them back. Features are zero where the mask `(B, N)` is False.
    """
    ranks = (mask.long().cumsum(1) - 1).clamp(min=0).unsqueeze(2).expand_as(x)
    return zeros_like(x).scatter_add(1, ranks, x), ranks  # Masked positions add zeros.

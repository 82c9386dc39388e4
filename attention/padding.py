"""Passes a padding mask to the attention modules inside a model.

A module at a site is called with the features alone. A model whose inputs differ in length sets the mask
around the part that works at one resolution:

    with padding(mask):          # (B, N), at this resolution
        x = self.stage(x)        # every attention in here looks at real positions alone
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import local

from torch import Tensor

_here = local()


@contextmanager
def padding(mask: Tensor | None) -> Iterator[None]:
    """In here positions where `mask`, bool `(B, *spatial)`, is False are padding; None: there is none."""
    before = getattr(_here, "mask", None)
    _here.mask = mask
    try:
        yield
    finally:
        _here.mask = before


def current_mask(batch: int, spatial: Sequence[int]) -> Tensor | None:
    """Bool `(B, N)`, True where a position is real, inside `padding`; None outside of it.

    Raises ValueError where the mask in force is of another shape than `(batch, *spatial)`.
    """
    mask: Tensor | None = getattr(_here, "mask", None)
    if mask is None:
        return None
    if tuple(mask.shape) != (batch, *spatial):
        raise ValueError(
            f"the padding mask is of shape {tuple(mask.shape)}; the features have {(batch, *spatial)}"
        )
    return mask.flatten(1)

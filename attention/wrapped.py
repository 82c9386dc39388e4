"""A module that somebody else wrote, behind the gate of this project."""

import inspect
from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor, nn

from attention.attention_map import AttentionMap, rescaling_map
from attention.gated import Gated, Layout


class Wrapped(Gated):
    """Module of another author behind a gate that starts at zero.

    Inside `attention.padding.padding(mask)`, the module gets zeros at padded positions. If its `forward` has
    a parameter `mask`, it also gets the mask there, bool `(B, *spatial)`, True at real positions.

    Args:
        channels: Number of channels C of the features.
        module: The module. It maps features to features of the same shape.
        layout: Order of the dimensions that it takes: `BC*` for `(B, C, *spatial)`, `B*C` for `(B, N, C)`.
        dimensions: Number of spatial dimensions that it takes. Features with fewer get dimensions of extent
            1 at the end, and those with more are joined in front. None leaves them as they are.

    Shape:
        `(B, C, *spatial)` to the same shape, or `(B, *spatial, C)` if the attribute `layout` is `B*C`.
    """

    def __init__(
        self, channels: int, module: nn.Module, *, layout: Layout = "BC*", dimensions: int | None = None
    ) -> None:
        super().__init__(channels)
        self.module = module
        self.takes_layout, self.dimensions = layout, dimensions
        self.takes_mask = "mask" in inspect.signature(module.forward).parameters

    def attend(self, x: Tensor, mask: Tensor | None, spatial: Sequence[int]) -> Tensor:
        shape = with_dimensions(spatial, self.dimensions)
        arguments = {}
        if self.takes_mask:
            arguments["mask"] = None if mask is None else mask.unflatten(1, shape)
        if self.takes_layout == "B*C":
            return same_shape(self.module(x, **arguments), x)
        features = x.transpose(1, 2).unflatten(2, shape)  # (B, C, *shape)
        return same_shape(self.module(features, **arguments), features).flatten(2).transpose(1, 2)

    def attention_map(self, x: Tensor, mask: Tensor | None, spatial: Sequence[int]) -> AttentionMap | None:
        x = x.to(next((p.dtype for p in self.module.parameters()), x.dtype))
        # Other modules mix elements, so that zeros do not stay zeros.
        dropped = torch.rand(x.shape, generator=torch.Generator().manual_seed(0)).to(x.device) < 0.5
        if self.attend(x.masked_fill(dropped, 0), mask, spatial)[dropped].any():
            return None
        y = self.attend(x, mask, spatial)
        return rescaling_map(x.float(), y.float(), spatial=spatial, mask=mask)


def is_rescaling(wrapped: Wrapped, size: Sequence[int]) -> bool:
    """Return whether a module multiplies its input, element by element, by something.

    Then its output is zero where its input is. The output of a convolution or of attention is not, since it
    mixes elements. False if the module fails, which the check of its contract reports.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, prod(size), wrapped.channels, generator=generator)
    x = x * (torch.rand(x.shape, generator=generator) < 0.5)
    training = wrapped.training
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            y = wrapped.eval().attend(x, None, size)
    except Exception:
        return False
    finally:
        wrapped.train(training)
    return bool((y[x == 0] == 0).all() and (y[x != 0] != 0).any())


def with_dimensions(spatial: Sequence[int], count: int | None) -> Sequence[int]:
    """Return the extents of `spatial` positions with `count` dimensions."""
    if count is None or len(spatial) == count:
        return spatial
    if len(spatial) < count:
        return [*spatial, *[1] * (count - len(spatial))]
    joined = len(spatial) - count + 1
    return [prod(spatial[:joined]), *spatial[joined:]]


class ShapeError(ValueError):
    """A module returns something else than features of the shape of its input."""


def same_shape(y: object, x: Tensor) -> Tensor:
    """Return `y`, the output of a module for `x`, or raise ShapeError unless it has the shape of `x`."""
    if not isinstance(y, Tensor) or y.shape != x.shape:
        shape = tuple(y.shape) if isinstance(y, Tensor) else f"a {type(y).__name__}"
        raise ShapeError(f"returns {shape} for {tuple(x.shape)}; a module must keep the shape")
    return y

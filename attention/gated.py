"""What all attention modules share: `y = x + gamma * attend(x)` over the positions of a feature map."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.fx import Proxy

from attention.padding import current_mask

# Where channels are: `(B, C, *spatial)`, as convolutions have it, or `(B, *spatial, C)`, as linear layers.
Layout = Literal["BC*", "B*C"]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one module costs at one place.

    parameters: trainable values.
    macs: multiply-accumulates of the matrix products of one forward pass of one image.
    memory: values kept for the backward pass of one image, beyond the input itself, for channels_last
        features. Of contiguous ones, a projection keeps a transposed copy besides.
    """

    parameters: int
    macs: int
    memory: int


class Gated(nn.Module, ABC):
    """A residual update of a feature map, behind one scalar gate that starts at zero.

    Shape: `(B, C, *spatial)` with one, two or three spatial dimensions, or `(B, *spatial, C)` where `layout`
    is `B*C` -> the same shape, dtype and memory format. A new module is exactly the identity, so it can
    enter a trained network. The first `class_tokens` of `(B, N, C)` pass by: they are neither looked at nor
    changed. A module that `replaces` another one returns the update alone, zero at class tokens.

    Inside `attention.padding.padding(mask)` real positions look at real ones alone, whatever stands in the
    others, and those are returned as they are.
    """

    site = ""  # where it sits in a model
    layout: Layout = "BC*"  # of the features there
    class_tokens = 0  # of these, before the positions of the input
    replaces = False

    # True where products are summed over all positions: N squares of features overflow float16, so
    # such a module works in float32 wherever float16 is asked for. bfloat16 has the range.
    sums_over_positions = False

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels
        self.gamma = nn.Parameter(torch.zeros(1))

    @abstractmethod
    def attend(self, x: Tensor, mask: Tensor | None, spatial: Sequence[int]) -> Tensor:
        """The update of every position from all of them: `(B, N, C)` -> `(B, N, C)`.

        mask: bool `(B, N)`, True at the positions that may be looked at, one at least in every row; None
            where all may be. `x` is zero at the others, and what is returned for them does not matter if it
            is finite.
        spatial: the extents of the feature map, whose positions come in order: N is their product.
        """

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(x, Proxy):
            raise TypeError(
                f"torch.fx cannot see into {type(self).__name__}: trace it as a leaf, such as by "
                f'create_feature_extractor(model, nodes, tracer_kwargs={{"leaf_modules": [attention.Gated]}})'
            )
        last = self.layout == "B*C"
        if not 3 <= x.ndim <= 5 or x.shape[-1 if last else 1] != self.channels:
            taken = f"(B, *spatial, {self.channels})" if last else f"(B, {self.channels}, *spatial)"
            raise ValueError(
                f"{type(self).__name__}({self.channels}) takes {taken} with one to three spatial dimensions; "
                f"got {tuple(x.shape)}"
            )
        if not self.class_tokens:
            return self._positions(x)
        first, rest = x.split([self.class_tokens, x.shape[1] - self.class_tokens], dim=1)
        return torch.cat([torch.zeros_like(first) if self.replaces else first, self._positions(rest)], dim=1)

    def _positions(self, x: Tensor) -> Tensor:
        last = self.layout == "B*C"
        spatial = x.shape[1:-1] if last else x.shape[2:]
        # Positions first: a view of the input, whether it is contiguous or channels_last.
        tokens = x.flatten(1, -2) if last else x.flatten(2).transpose(1, 2)  # (B, N, C)
        mask, visible = current_mask(x.shape[0], spatial), None
        if mask is not None:
            tokens = tokens.masked_fill(~mask.unsqueeze(2), 0)
            visible = mask | ~mask.any(1, keepdim=True)  # a softmax over nothing would be NaN
        if self.sums_over_positions and _is_half(x):
            with torch.autocast(x.device.type, enabled=False):
                update = self.attend(tokens.float(), visible, spatial)
        else:
            update = self.attend(tokens, visible, spatial)
        if update.dtype == torch.float16:
            update = update.float()  # the gate's gradient is a sum over the whole batch
        if mask is not None:
            update = update.masked_fill(~mask.unsqueeze(2), 0)
        update = (self.gamma.to(update.dtype) * update).to(x.dtype)
        update = update.unflatten(1, spatial) if last else update.transpose(1, 2).unflatten(2, spatial)
        y: Tensor = update if self.replaces else x + update
        return y

    def extra_repr(self) -> str:
        return f"channels={self.channels}"


def project(layer: nn.Linear, x: Tensor) -> Tensor:
    """`layer(x)` in the dtype of `x`, for modules that leave their own dtype to keep the range."""
    bias = None if layer.bias is None else layer.bias.to(x.dtype)
    return nn.functional.linear(x, layer.weight.to(x.dtype), bias)


def _is_half(x: Tensor) -> bool:
    device = x.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):  # not on "meta"
        return torch.float16 in (torch.get_autocast_dtype(device), x.dtype)
    return x.dtype == torch.float16

"""What all attention modules share: `y = x + gamma * attend(x)` over the positions of a feature map."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn


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

    Shape: `(B, C, *spatial)` with one, two or three spatial dimensions -> the same shape, dtype and
    memory format. A new module is exactly the identity, so it can enter a trained network.
    """

    site = ""  # where it sits in a model

    # True where products are summed over all positions: N squares of features overflow float16, so
    # such a module works in float32 wherever float16 is asked for. bfloat16 has the range.
    sums_over_positions = False

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels
        self.gamma = nn.Parameter(torch.zeros(1))

    @abstractmethod
    def attend(self, x: Tensor) -> Tensor:
        """The update of every position from all of them: `(B, N, C)` -> `(B, N, C)`."""

    def forward(self, x: Tensor) -> Tensor:
        if not 3 <= x.ndim <= 5 or x.shape[1] != self.channels:
            raise ValueError(
                f"{type(self).__name__}({self.channels}) takes (B, {self.channels}, *spatial) with one to "
                f"three spatial dimensions; got {tuple(x.shape)}"
            )
        # Positions first: a view of the input, whether it is contiguous or channels_last.
        tokens = x.flatten(2).transpose(1, 2)  # (B, N, C)
        if self.sums_over_positions and _is_half(x):
            with torch.autocast(x.device.type, enabled=False):
                update = self.attend(tokens.float())
        else:
            update = self.attend(tokens)
        if update.dtype == torch.float16:
            update = update.float()  # the gate's gradient is a sum over the whole batch
        update = self.gamma.to(update.dtype) * update
        y: Tensor = x + update.to(x.dtype).transpose(1, 2).unflatten(2, x.shape[2:])
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

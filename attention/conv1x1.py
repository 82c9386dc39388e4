"""The control: `y = x + gamma * W x`, a 1x1 convolution behind the same gate.

Designed in this project. It has parameters and a gate as the attention modules have, but each position sees
only itself. If it wins as often as they do, the gain came from the parameters and not from attention.
"""

from collections.abc import Sequence
from math import prod

from torch import Tensor, nn

from attention.gated import Cost, Gated, project


class GatedConv1x1(Gated):
    """1x1 convolution without bias, behind a gate that starts at zero.

    Args:
        channels: Number of channels C of the features.

    Shape:
        `(B, C, *spatial)` to the same shape, or `(B, *spatial, C)` if `layout` is `B*C`.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.conv = nn.Linear(channels, channels, bias=False)

    def attend(self, x: Tensor, mask: Tensor | None, spatial: Sequence[int]) -> Tensor:
        return project(self.conv, x)  # (B, N, C)


def cost(channels: int, spatial: Sequence[int]) -> Cost:
    """Compute the cost of one `GatedConv1x1`."""
    C, N = channels, prod(spatial)
    return Cost(parameters=C * C + 1, macs=N * C * C, memory=N * C)

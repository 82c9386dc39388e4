"""The control: `y = x + gamma * W x`, a 1x1 convolution behind the same gate.

Ours. It has parameters and a gate as the attentions have, but looks at one position at a time: where
it wins as often as they do, the gain came from the parameters and not from attention.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from attention.gated import Cost, Gated, project


class GatedConv1x1(Gated):
    """A zero-gated 1x1 convolution over `channels` channels, without bias."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.conv = nn.Linear(channels, channels, bias=False)

    def attend(self, x: Tensor, mask: Tensor | None, spatial: Sequence[int]) -> Tensor:
        return project(self.conv, x)  # (B, N, C)


def cost(channels: int, positions: int) -> Cost:
    C, N = channels, positions
    return Cost(parameters=C * C + 1, macs=N * C * C, memory=N * C)

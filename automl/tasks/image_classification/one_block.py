"""One residual block more, as a module for a site: the free control of a module that costs as much."""

from torch import Tensor, nn


class Block(nn.Module):
    """Two 3x3 convolutions with batch norm, `(B, C, H, W)` to the same shape."""

    multiplies = False

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        update: Tensor = self.layers(x)
        return update

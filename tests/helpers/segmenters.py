"""A hand-written model whose outputs are maps of logits: a plain U-Net."""

import torch
from torch import Tensor, nn

CLASSES = 7  # No feature map has as many channels.


class DoubleConv(nn.Module):
    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            *(nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(inplace=True)),
            *(nn.Conv2d(o, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(inplace=True)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class Up(nn.Module):
    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        self.up, self.conv = nn.ConvTranspose2d(i, i // 2, 2, 2), DoubleConv(i, o)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        return self.conv(torch.cat([skip, self.up(x)], 1))


class PlainUNet(nn.Module):
    """U-Net of double convolutions, max pooling and transposed convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.inc = DoubleConv(3, 8)
        self.down1, self.down2 = (nn.Sequential(nn.MaxPool2d(2), DoubleConv(c, 2 * c)) for c in (8, 16))
        self.up1, self.up2 = Up(32, 16), Up(16, 8)
        self.out = nn.Sequential(nn.Conv2d(8, CLASSES, 1))

    def forward(self, x: Tensor) -> Tensor:
        x1 = self.inc(x)
        x2 = self.down1(x1)
        return self.out(self.up2(self.up1(self.down2(x2), x2), x1))

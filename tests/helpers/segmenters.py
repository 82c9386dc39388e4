"""Hand-written models whose outputs are maps of logits: a plain U-Net and a detector like YOLO."""

import torch
from torch import Tensor, nn

CLASSES = 7  # No feature map has as many channels.


def _convolve(i: int, o: int, *, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o), nn.SiLU())


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


class Bottleneck(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.cv1, self.cv2 = _convolve(channels, channels), _convolve(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.cv2(self.cv1(x))


class Detect(nn.Module):
    """Heads of boxes, as distributions over distances, and of classes. It returns both and the raw maps."""

    BINS = 5

    def __init__(self, channels: tuple[int, ...]) -> None:
        super().__init__()
        self.box, self.cls = (
            nn.ModuleList(
                nn.Sequential(_convolve(c, 12), _convolve(12, 12), nn.Conv2d(12, o, 1)) for c in channels
            )
            for o in (4 * self.BINS, CLASSES)
        )
        self.expectation = nn.Conv2d(self.BINS, 1, 1, bias=False)

    def forward(self, maps: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        raw = [torch.cat([b(x), c(x)], 1) for b, c, x in zip(self.box, self.cls, maps, strict=True)]
        boxes, classes = torch.cat([x.flatten(2) for x in raw], 2).split([4 * self.BINS, CLASSES], 1)
        distances = self.expectation(boxes.unflatten(1, (4, self.BINS)).transpose(1, 2).softmax(1))
        return torch.cat([(distances.squeeze(1) + 0.5) * 8, classes.sigmoid()], 1), raw


class Yolo(nn.Module):
    """Detector of two resolutions. With `residual`, its backbone has residual blocks."""

    def __init__(self, *, residual: bool) -> None:
        super().__init__()
        self.stem = _convolve(3, 8, stride=2)
        self.p3, self.p4 = (
            nn.Sequential(
                _convolve(c, 2 * c, stride=2), Bottleneck(2 * c) if residual else _convolve(2 * c, 2 * c)
            )
            for c in (8, 16)
        )
        self.up, self.neck = nn.Upsample(scale_factor=2), _convolve(48, 16)
        self.detect = Detect((16, 32))

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        p3 = self.p3(self.stem(x))
        p4 = self.p4(p3)
        return self.detect([self.neck(torch.cat([self.up(p4), p3], 1)), p4])

"""A small ResNet for small images, whose first stage may be deep."""

from collections import OrderedDict

from torch import Tensor, nn

from automl.base.errors import InputError

STAGES = 4  # at most


def small_resnet(*, classes: int, in_channels: int = 3, blocks: str = "3-1", channels: int = 16) -> nn.Module:
    """Build a ResNet of torchvision's basic blocks behind two convolutions of stride 2.

    Each stage but the first halves the side and doubles the channels. Source: K. He et al., Deep Residual
    Learning for Image Recognition (2015), arXiv 1512.03385, section 4.2, with a stem of stride 4.

    Args:
        classes: Number of labels.
        in_channels: Number of channels of the images.
        blocks: Number of blocks of each stage, such as `3-1`.
        channels: Number of channels of the first stage.

    Raises:
        InputError: There are not one to four stages of one or more blocks each, or `channels` is below 1.
    """
    counts = blocks.split("-")
    if not (len(counts) <= STAGES and all(count.isdecimal() and int(count) for count in counts)):
        raise InputError(
            f"blocks must be numbers from 1 on, one for each of up to {STAGES} stages, such as 3-1; got "
            f"{blocks!r}"
        )
    if channels < 1:
        raise InputError(f"channels of a backbone must be 1 or more; got {channels}")
    stem = nn.Sequential(*_convolution(in_channels, channels), *_convolution(channels, channels))
    layers: dict[str, nn.Module] = {"stem": stem}
    for number, count in enumerate(map(int, counts), start=1):
        stride = 1 if number == 1 else 2
        first = _Block(channels, stride * channels, stride)
        channels *= stride
        layers[f"stage{number}"] = nn.Sequential(
            first, *(_Block(channels, channels) for _ in range(count - 1))
        )
    head = {"pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten(), "head": nn.Linear(channels, classes)}
    return nn.Sequential(OrderedDict({**layers, **head}))


def _convolution(channels: int, out: int, stride: int = 2) -> list[nn.Module]:
    return [nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU(inplace=True)]


class _Block(nn.Module):
    """Torchvision's `BasicBlock`, as importing that takes each process of a trial seconds."""

    def __init__(self, channels: int, out: int, stride: int = 1) -> None:
        super().__init__()
        shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        self.conv1, self.bn1, self.relu = _convolution(channels, out, stride)
        self.conv2, self.bn2, _ = _convolution(out, out, 1)
        self.downsample = shortcut if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        branch = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y: Tensor = self.relu(branch + self.downsample(x))
        return y

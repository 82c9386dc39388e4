"""A U-Net over a backbone of images with several resolutions, with sites on its skip connections.

Source: O. Ronneberger et al., U-Net (2015), arXiv 1505.04597; decoder as in segmentation_models_pytorch. The
encoder is a classification model without its head. The logits of its finest resolution are resized.
"""

from math import log2

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from automl.base.errors import InputError
from backbones.site import StoreOutput, remove_head
from backbones.trace import trace
from backbones.trace_record import Output

STRIDES = (2, 4, 8, 16, 32)
CHANNELS = 8  # Channels of the decoder at stride 1. Each following stride has twice as many.


class UNet(nn.Module):
    """U-Net on a backbone.

    Besides the backbone's sites, it has `bottleneck`, and from the finest resolution on `skip1`, ... and
    `decoder1`, ...

    Args:
        body: A classification model. Its head is removed in place.
        classes: Number of classes of a pixel.
        size: Side of the images [pixels].

    Raises:
        InputError: The body has feature maps of only one resolution.

    Shape:
        `(B, 3, H, W)` to logits `(B, classes, H, W)`.
    """

    def __init__(self, body: nn.Module, *, classes: int, size: int) -> None:
        super().__init__()
        stages = find_stages(body, size)
        remove_head(body, [*stages][-1], size)
        self.body = body
        self._maps: dict[str, Tensor] = {}  # Maps of the current pass.
        for path in stages:
            body.get_submodule(path).register_forward_hook(StoreOutput(self._maps, path))
        # Dimension of the channels.
        self.dimensions = {path: output.channels or 1 for path, output in stages.items()}
        *widths, below = (output.shape[self.dimensions[path]] for path, output in stages.items())
        # Attention may be inserted after it.
        self.skips = nn.ModuleList(nn.Sequential(nn.Identity()) for _ in widths)
        self.bottleneck = nn.Sequential(nn.Identity())
        inputs = [width + CHANNELS * 4 * 2**i for i, width in enumerate(widths)]
        inputs[-1] = widths[-1] + below
        self.decoder = nn.ModuleList(_block(width, CHANNELS * 2 * 2**i) for i, width in enumerate(inputs))
        self.head = nn.Conv2d(CHANNELS * 2, classes, 1)
        self.site_names = {f"skips.{i}": f"skip{i + 1}" for i in range(len(widths))}
        self.site_names |= {f"decoder.{i}": f"decoder{i + 1}" for i in range(len(widths))}

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits `(B, classes, H, W)` of `images`, `(B, 3, H, W)`."""
        self.body(images)
        maps = [self._maps[path].movedim(channels, 1) for path, channels in self.dimensions.items()]
        self._maps.clear()
        x = self.bottleneck(maps.pop())
        for skip, block in zip(reversed(self.skips), reversed(self.decoder), strict=True):
            finer = skip(maps.pop())
            x = block(torch.cat([F.interpolate(x, finer.shape[2:]), finer], 1))
        return F.interpolate(self.head(x), images.shape[2:], mode="bilinear")


def _block(inputs: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (inputs, outputs):
        layers += [nn.Conv2d(channels, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


def find_stages(body: nn.Module, size: int) -> dict[str, Output]:
    """Return the last output of each resolution of a model by its path, starting at the finest."""
    run = trace(body, torch.empty(2, 3, size, size))
    maps = {p: o for p, o in run.outputs.items() if len(o.shape) == 4 and o.alone and o.channels in (1, 3)}
    # Some convolutions have no padding and lose pixels.
    stride = {path: 2 ** round(log2(size / o.shape[2 if o.channels == 1 else 1])) for path, o in maps.items()}
    ends: dict[int, str] = {}
    for path in sorted(run.sources, key=lambda path: path.count(".")):  # the outermost modules first
        before = run.sources[path]
        if path in maps and before in maps and stride[path] == 2 * stride[before]:
            ends.setdefault(stride[before], before)
    deepest = max([value for value in stride.values() if value in STRIDES], default=0)
    if deepest:
        ends[deepest] = [path for path, value in stride.items() if value == deepest][-1]
    stages = {ends[value]: maps[ends[value]] for value in STRIDES if value in ends}
    if len(stages) < 2:
        raise InputError(
            f"a U-Net needs a backbone with feature maps of several resolutions, and {type(body).__name__} "
            f"has none. Take xresnet18, torchvision:resnet50 or timm:convnext_atto"
        )
    return stages

"""PSMNet: the disparity of each pixel of the left of two rectified images.

Source: J.-R. Chang, Y.-S. Chen, Pyramid Stereo Matching Network (2018), arXiv 1803.08669: a backbone that
both images share, pyramid pooling, a volume of the features of both images at each disparity, 3-D
convolutions over it, and the expected disparity under the softmax of the costs.

Departures: both images go through the backbone as one batch, so that batch norm takes its statistics from
both; features and costs are resized with `align_corners=False`, as torch now does. As in the authors' code,
and not in the paper's table, the dilations of the last two stages are 1 and 2. With another `width` all
channels are multiplied by it, with another `pool` all windows of the pyramid. With `groups` the volume also
has correlations: X. Guo et al., Group-wise Correlation Stereo Network (2019), arXiv 1903.04025, section 3.2.
"""

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention import InputError, unknown
from backbones.siamese import Siamese

Aggregation = Literal["hourglass", "basic"]

STEP = 4  # pixels of the image, and of disparity, a position of the volume
MULTIPLE = 16  # pixels that height, width and maximum disparity must be multiples of
PYRAMID = (1, 2, 4, 8)  # parts of the largest window


def normed(inputs: int, outputs: int, kernel: int, stride: int = 1, dilation: int = 1) -> list[nn.Module]:
    """A 2-D convolution that keeps the size but for its stride, and a norm."""
    padding = dilation * (kernel // 2)
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, dilation, bias=False)
    return [conv, nn.BatchNorm2d(outputs)]


def normed_3d(inputs: int, outputs: int, stride: int = 1) -> list[nn.Module]:
    """The same over the volume, with kernels of 3."""
    return [nn.Conv3d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm3d(outputs)]


class Block(nn.Module):
    """Two convolutions beside a shortcut, without an activation after the addition."""

    def __init__(self, inputs: int, outputs: int, stride: int, dilation: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            *normed(inputs, outputs, 3, stride, dilation),
            nn.ReLU(inplace=True),
            *normed(outputs, outputs, 3, dilation=dilation),
        )
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Sequential(*normed(inputs, outputs, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.branch(x) + self.shortcut(x)
        return found


def stage(inputs: int, outputs: int, count: int, stride: int = 1, dilation: int = 1) -> nn.Sequential:
    """So many blocks, of which the first changes channels and size."""
    first = Block(inputs, outputs, stride, dilation)
    return nn.Sequential(first, *(Block(outputs, outputs, 1, dilation) for _ in range(count - 1)))


class Pyramid(nn.Module):
    """Means over windows of four sizes beside the features themselves: `(B, C, H, W)` -> `(B, D, H, W)`.

    middle: those of an earlier stage, which are joined, too. pool: side of the largest window.
    """

    def __init__(self, middle: int, last: int, outputs: int, pool: int) -> None:
        super().__init__()
        self.windows = nn.ModuleList(
            nn.Sequential(nn.AvgPool2d(pool // part), *normed(last, outputs, 1), nn.ReLU(inplace=True))
            for part in PYRAMID
        )
        joined = middle + last + len(PYRAMID) * outputs
        self.fusion = nn.Sequential(
            *normed(joined, last, 3), nn.ReLU(inplace=True), nn.Conv2d(last, outputs, 1, bias=False)
        )

    def forward(self, middle: Tensor, last: Tensor) -> Tensor:
        size = last.shape[2:]
        means = [F.interpolate(window(last), size=size, mode="bilinear") for window in self.windows]
        found: Tensor = self.fusion(torch.cat([middle, last, *means], 1))
        return found


class FeatureExtraction(Siamese):
    """Features of an image `(B, 3, H, W)` at a quarter of its size."""

    def __init__(self, channels: int, blocks: int, pool: int) -> None:
        super().__init__()
        wide = 4 * channels
        layers: list[nn.Module] = []
        for i in range(3):
            layers += [*normed(channels if i else 3, channels, 3, 1 if i else 2), nn.ReLU(inplace=True)]
        self.stem = nn.Sequential(*layers)
        self.stage1 = stage(channels, channels, 3)
        self.stage2 = stage(channels, 2 * channels, blocks, stride=2)
        self.stage3 = stage(2 * channels, wide, 3)
        self.stage4 = stage(wide, wide, 3, dilation=2)
        self.pyramid = Pyramid(2 * channels, wide, channels, pool)

    def features(self, x: Tensor) -> Tensor:
        middle = self.stage2(self.stage1(self.stem(x)))
        found: Tensor = self.pyramid(middle, self.stage4(self.stage3(middle)))
        return found


def cost_volume(left: Tensor, right: Tensor, disparities: int) -> Tensor:
    """At each disparity the left features beside the right ones that far to the left of them.

    Two of `(B, C, H, W)` -> `(B, 2 C, disparities, H, W)`; zeros where the right ones would be outside.
    """
    width = left.shape[-1]
    pairs = [
        F.pad(torch.cat([left[..., d:], right[..., : width - d]], 1), (d, 0)) for d in range(disparities)
    ]
    return torch.stack(pairs, 2)


def correlations(left: Tensor, right: Tensor, disparities: int, groups: int) -> Tensor:
    """At each disparity the mean product of left and right features in each group of channels.

    Two of `(B, C, H, W)` -> `(B, groups, disparities, H, W)`; zeros where the right ones would be outside.
    """
    width = left.shape[-1]
    products = [left[..., d:] * right[..., : width - d] for d in range(disparities)]
    means = [F.pad(p.unflatten(1, (groups, -1)).mean(2), (d, 0)) for d, p in enumerate(products)]
    return torch.stack(means, 2)


def between(few: int, many: int) -> Tensor:
    """Weights of linear interpolation from `few` to `many` places, float64 `(many, few)`."""
    weights: Tensor = F.interpolate(torch.eye(few, dtype=torch.float64)[None], size=many, mode="linear")[0].T
    return weights


def resized_costs(costs: Tensor, weights: Tensor, size: tuple[int, int]) -> Tensor:
    """`(B, D, H, W)` -> `(B, M, *size)`, trilinear: over the image, then by `weights` `(M, D)`."""
    wide = F.interpolate(costs, size=size, mode="bilinear")
    found: Tensor = (weights.to(wide) @ wide.flatten(2)).unflatten(2, size)
    return found


def soft_argmin(costs: Tensor) -> Tensor:
    """The mean disparity by the softmax of negated costs: `(B, M, H, W)` -> `(B, H, W)`."""
    disparities = torch.arange(costs.shape[1], device=costs.device, dtype=costs.dtype)
    return (costs.softmax(1) * disparities[:, None, None]).sum(1)


def entry(channels: int, groups: int) -> nn.Sequential:
    """From the features of both images, and the correlations of so many groups, to `channels`."""
    first, second = normed_3d(2 * channels + groups, channels), normed_3d(channels, channels)
    return nn.Sequential(*first, nn.ReLU(inplace=True), *second, nn.ReLU(inplace=True))


def head(channels: int) -> nn.Sequential:
    """From a volume to a negated cost at each of its positions, `(B, 1, D, H, W)`."""
    last = nn.Conv3d(channels, 1, 3, padding=1, bias=False)
    return nn.Sequential(*normed_3d(channels, channels), nn.ReLU(inplace=True), last)


class Residual3d(nn.Module):
    """Two convolutions of a volume beside it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        first, second = normed_3d(channels, channels), normed_3d(channels, channels)
        self.branch = nn.Sequential(*first, nn.ReLU(inplace=True), *second)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.branch(x) + x
        return found


class Basic(nn.Module):
    """Twelve convolutions, and the costs: `(B, 2 C + groups, D, H, W)` -> one of `(B, D, H, W)`."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.entry = entry(channels, groups)
        self.blocks = nn.Sequential(*(Residual3d(channels) for _ in range(4)))
        self.head = head(channels)

    def forward(self, volume: Tensor) -> list[Tensor]:
        return [self.head(self.blocks(self.entry(volume)))[:, 0]]


class Hourglass(nn.Module):
    """Down to a quarter of the size and up again, with what is known at half of it from others."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        wide = 2 * channels
        self.down1 = nn.Sequential(*normed_3d(channels, wide, 2), nn.ReLU(inplace=True))
        self.middle = nn.Sequential(*normed_3d(wide, wide))
        self.down2 = nn.Sequential(*normed_3d(wide, wide, 2), nn.ReLU(inplace=True))
        self.bottom = nn.Sequential(*normed_3d(wide, wide), nn.ReLU(inplace=True))
        self.up2 = upward(wide, wide)
        self.up1 = upward(wide, channels)

    def forward(
        self, x: Tensor, shortcut: Tensor, down: Tensor | None = None, up: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """x, shortcut: `(B, C, D, H, W)`, what goes through and what it is added to.

        down, up: `(B, 2 C, D/2, H/2, W/2)`, at half of the size on the way down of the first one, and on the
        way up of the one before. Returns the sum, and its own two of these.
        """
        half = self.middle(self.down1(x))
        half = F.relu(half if up is None else half + up)
        rising = self.up2(self.bottom(self.down2(half)))
        rising = F.relu(rising + (half if down is None else down))
        return self.up1(rising) + shortcut, half, rising


def upward(inputs: int, outputs: int) -> nn.Sequential:
    """To twice the size."""
    conv = nn.ConvTranspose3d(inputs, outputs, 3, 2, 1, output_padding=1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm3d(outputs))


class StackedHourglass(nn.Module):
    """Three hourglasses, the costs of each added to those of the one before: three of `(B, D, H, W)`."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.entry = entry(channels, groups)
        self.residual = Residual3d(channels)
        self.hourglasses = nn.ModuleList(Hourglass(channels) for _ in range(3))
        self.heads = nn.ModuleList(head(channels) for _ in range(3))

    def forward(self, volume: Tensor) -> list[Tensor]:
        first = self.residual(self.entry(volume))
        x, down, up = first, None, None
        costs: list[Tensor] = []
        for hourglass, to_costs in zip(self.hourglasses, self.heads, strict=True):
            x, half, up = hourglass(x, first, down, up)
            down = half if down is None else down
            found = to_costs(x)[:, 0]
            costs.append(found + costs[-1] if costs else found)
        return costs


class PSMNet(nn.Module):
    """Left and right, normalised, `(B, 3, H, W)` -> disparities of the left one in pixels, `(B, H, W)`.

    In training a list of them, one of each output, the last one the best. H and W are multiples of 16, and
    at least 4 times the largest window of the pyramid.
    """

    between: Tensor  # the weights by which costs are resized

    def __init__(
        self,
        *,
        max_disparity: int,
        channels: int,
        aggregation: Aggregation,
        blocks: int,
        pool: int,
        groups: int,
    ) -> None:
        super().__init__()
        self.max_disparity, self.groups = max_disparity, groups
        self.backbone = FeatureExtraction(channels, blocks, pool)
        self.aggregation = (StackedHourglass if aggregation == "hourglass" else Basic)(channels, groups)
        weights = between(max_disparity // STEP, max_disparity)
        self.register_buffer("between", weights, persistent=False)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Conv3d | nn.ConvTranspose3d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, left: Tensor, right: Tensor) -> Tensor | list[Tensor]:
        size = (left.shape[2], left.shape[3])
        of_left, of_right = self.backbone(left, right)
        places = self.max_disparity // STEP
        volume = cost_volume(of_left, of_right, places)
        if self.groups:
            volume = torch.cat([volume, correlations(of_left, of_right, places, self.groups)], 1)
        costs = self.aggregation(volume)
        with torch.autocast(left.device.type, enabled=False):
            wanted = costs if self.training else costs[-1:]
            found = [soft_argmin(resized_costs(cost.float(), self.between, size)) for cost in wanted]
        return found if self.training else found[0]


def build(
    *,
    max_disparity: int,
    aggregation: Aggregation = "hourglass",
    width: float = 1.0,
    blocks: int = 16,
    pool: int = 64,
    groups: int = 0,
) -> PSMNet:
    """A new PSMNet; the defaults are the published ones.

    max_disparity: in pixels, a multiple of 16. aggregation: the stacked hourglasses or the basic one.
    width: all channels are multiplied by it. blocks: of the backbone's second stage.
    pool: the largest window of the pyramid, in positions that stand for 4 pixels each.
    groups: of channels whose correlations the volume has beside the features; with them it learns sooner.
    Raises InputError like `check`, and for another `max_disparity`.
    """
    check(aggregation=aggregation, width=width, blocks=blocks, pool=pool, groups=groups)
    if max_disparity < MULTIPLE or max_disparity % MULTIPLE:
        raise InputError(f"max_disparity must be a multiple of {MULTIPLE}; got {max_disparity}")
    channels = round(32 * width)
    return PSMNet(
        max_disparity=max_disparity,
        channels=channels,
        aggregation=aggregation,
        blocks=blocks,
        pool=pool,
        groups=groups,
    )


def check(*, aggregation: str, width: float, blocks: int, pool: int, groups: int) -> None:
    """Raises InputError for options that no PSMNet can have."""
    if aggregation not in get_args(Aggregation):
        raise unknown("aggregation of psmnet", aggregation, get_args(Aggregation))
    # With fewer than 8 channels oneDNN's gradients of a strided convolution of 1 x 1 are written outside of
    # their memory on CPUs without AVX-512, and end the process (torch 2.15).
    if not 1 / 4 <= width <= 16:
        raise InputError(f"width of psmnet must lie between 1/4 and 16; got {width}")
    if not 1 <= blocks <= 64:
        raise InputError(f"blocks of psmnet must lie between 1 and 64; got {blocks}")
    if not 8 <= pool <= 256 or pool % PYRAMID[-1]:
        raise InputError(f"pool of psmnet must be a multiple of {PYRAMID[-1]} from 8 to 256; got {pool}")
    channels = round(32 * width)
    if groups and (groups < 0 or channels % groups):
        raise InputError(f"groups of psmnet must be 0 or divide its {channels} channels; got {groups}")

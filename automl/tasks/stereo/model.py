"""The models of two rectified images. PSMNet estimates the disparity of each pixel of the left one.

Source: J.-R. Chang, Y.-S. Chen, Pyramid Stereo Matching Network (2018), arXiv 1803.08669. It consists of a
backbone that both images share, pyramid pooling, a volume of the features of both images at each disparity,
3-D convolutions over it, and the expected disparity under the softmax of the costs.

Departures: both images pass the backbone as one batch, so batch norm takes its statistics from both. Features
and costs are resized with `align_corners=False`, as torch now does. As in the authors' code, and not in the
paper's table, the dilations of the last two stages are 1 and 2. `width` multiplies all channels, and `pool`
scales all windows of the pyramid. With `groups` the volume also has correlations: X. Guo et al., Group-wise
Correlation Stereo Network (2019), arXiv 1903.04025, section 3.2.
"""

from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from automl.base.errors import InputError, unknown
from automl.task.subject import Subject
from backbones.backbone_table import Backbone, table, with_defaults
from backbones.example import Example, sum_outputs
from backbones.site import Siamese

Aggregation = Literal["hourglass", "basic"]

STEP = 4  # stride of the volume in the image and in disparity [pixels]
MULTIPLE = 16  # height, width and maximum disparity must be multiples of this [pixels]
PYRAMID = (1, 2, 4, 8)  # divisors of the largest window
CHANNELS = 32  # of the features at width 1


def conv_norm(inputs: int, outputs: int, kernel: int, stride: int = 1, dilation: int = 1) -> list[nn.Module]:
    """Return a 2-D convolution with padding that keeps the size, apart from its stride, and a norm."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, dilation * (kernel // 2), dilation, bias=False)
    return [conv, nn.BatchNorm2d(outputs)]


def conv_norm_3d(inputs: int, outputs: int, stride: int = 1) -> list[nn.Module]:
    """Return a 3-D convolution of kernel size 3, and a norm."""
    return [nn.Conv3d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm3d(outputs)]


class Block(nn.Module):
    """Residual block of two convolutions, the first with a stride, without an activation after the sum."""

    def __init__(self, inputs: int, outputs: int, stride: int, dilation: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            *conv_norm(inputs, outputs, 3, stride, dilation),
            nn.ReLU(inplace=True),
            *conv_norm(outputs, outputs, 3, dilation=dilation),
        )
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Sequential(*conv_norm(inputs, outputs, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        """Add the branch of `x`, `(B, C, H, W)`, to its shortcut."""
        y: Tensor = self.branch(x) + self.shortcut(x)
        return y


def build_stage(inputs: int, outputs: int, count: int, stride: int = 1, dilation: int = 1) -> nn.Sequential:
    """Return `count` blocks, of which the first changes channels and size."""
    first = Block(inputs, outputs, stride, dilation)
    return nn.Sequential(first, *(Block(outputs, outputs, 1, dilation) for _ in range(count - 1)))


class Pyramid(nn.Module):
    """Means over windows of four sizes, joined with the features: `(B, C, H, W)` to `(B, D, H, W)`.

    Args:
        middle: Number of channels of an earlier stage, whose features are joined too.
        last: Number of channels of the last stage.
        outputs: Number of output channels D.
        pool: Side of the largest window.
    """

    def __init__(self, middle: int, last: int, outputs: int, pool: int) -> None:
        super().__init__()
        self.windows = nn.ModuleList(
            nn.Sequential(nn.AvgPool2d(pool // divisor), *conv_norm(last, outputs, 1), nn.ReLU(inplace=True))
            for divisor in PYRAMID
        )
        joined = middle + last + len(PYRAMID) * outputs
        self.fusion = nn.Sequential(
            *conv_norm(joined, last, 3), nn.ReLU(inplace=True), nn.Conv2d(last, outputs, 1, bias=False)
        )

    def forward(self, middle: Tensor, last: Tensor) -> Tensor:
        """Return the joined features `(B, D, H, W)`."""
        size = last.shape[2:]
        means = [F.interpolate(window(last), size=size, mode="bilinear") for window in self.windows]
        y: Tensor = self.fusion(torch.cat([middle, last, *means], 1))
        return y


class FeatureExtraction(Siamese):
    """Features of images `(B, 3, H, W)` at a quarter of their size.

    Args:
        channels: Channels of the first stage and of the features.
        blocks: Number of blocks of the second stage.
        pool: Side of the largest window of the pyramid.
    """

    def __init__(self, channels: int, blocks: int, pool: int) -> None:
        super().__init__()
        wide = 4 * channels
        layers: list[nn.Module] = []
        for i in range(3):
            layers += [*conv_norm(channels if i else 3, channels, 3, 1 if i else 2), nn.ReLU(inplace=True)]
        self.stem = nn.Sequential(*layers)
        self.stage1 = build_stage(channels, channels, 3)
        self.stage2 = build_stage(channels, 2 * channels, blocks, stride=2)
        self.stage3 = build_stage(2 * channels, wide, 3)
        self.stage4 = build_stage(wide, wide, 3, dilation=2)
        self.pyramid = Pyramid(2 * channels, wide, channels, pool)

    def features(self, x: Tensor) -> Tensor:
        """Return the features `(B, channels, H / 4, W / 4)`."""
        middle = self.stage2(self.stage1(self.stem(x)))
        y: Tensor = self.pyramid(middle, self.stage4(self.stage3(middle)))
        return y


def build_entry(channels: int, groups: int) -> nn.Sequential:
    """Return the layers from the features of both images and their correlations to `channels`."""
    first, second = conv_norm_3d(2 * channels + groups, channels), conv_norm_3d(channels, channels)
    return nn.Sequential(*first, nn.ReLU(inplace=True), *second, nn.ReLU(inplace=True))


def build_head(channels: int) -> nn.Sequential:
    """Return the layers from a volume to a negated cost at each of its positions, `(B, 1, D, H, W)`."""
    last = nn.Conv3d(channels, 1, 3, padding=1, bias=False)
    return nn.Sequential(*conv_norm_3d(channels, channels), nn.ReLU(inplace=True), last)


class Residual3d(nn.Module):
    """Residual block of two 3-D convolutions: `(B, C, D, H, W)` to the same shape."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        first, second = conv_norm_3d(channels, channels), conv_norm_3d(channels, channels)
        self.branch = nn.Sequential(*first, nn.ReLU(inplace=True), *second)

    def forward(self, x: Tensor) -> Tensor:
        """Add the branch of `x` to `x`."""
        y: Tensor = self.branch(x) + x
        return y


class Basic(nn.Module):
    """Twelve convolutions: `(B, 2 C + groups, D, H, W)` to a list of one `(B, D, H, W)`."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.entry = build_entry(channels, groups)
        self.blocks = nn.Sequential(*(Residual3d(channels) for _ in range(4)))
        self.head = build_head(channels)

    def forward(self, volume: Tensor) -> list[Tensor]:
        """Return the negated costs."""
        return [self.head(self.blocks(self.entry(volume)))[:, 0]]


class Hourglass(nn.Module):
    """Encoder to a quarter of the size and decoder back, with skip connections at half of the size."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        wide = 2 * channels
        self.down1 = nn.Sequential(*conv_norm_3d(channels, wide, 2), nn.ReLU(inplace=True))
        self.middle = nn.Sequential(*conv_norm_3d(wide, wide))
        self.down2 = nn.Sequential(*conv_norm_3d(wide, wide, 2), nn.ReLU(inplace=True))
        self.bottom = nn.Sequential(*conv_norm_3d(wide, wide), nn.ReLU(inplace=True))
        self.up2 = build_upsampling(wide, wide)
        self.up1 = build_upsampling(wide, channels)

    def forward(
        self, x: Tensor, shortcut: Tensor, down: Tensor | None = None, up: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run one hourglass.

        Args:
            x: Input `(B, C, D, H, W)`.
            shortcut: Added to the output. Of the same shape.
            down: Features of the first hourglass at half of the size on the way down, `(B, 2 C, D/2, H/2,
                W/2)`.
            up: Features of the previous hourglass on the way up, of the same shape.

        Returns:
            The sum, and this hourglass's features on the way down and up.
        """
        half = self.middle(self.down1(x))
        half = F.relu(half if up is None else half + up)
        rising = self.up2(self.bottom(self.down2(half)))
        rising = F.relu(rising + (half if down is None else down))
        return self.up1(rising) + shortcut, half, rising


def build_upsampling(inputs: int, outputs: int) -> nn.Sequential:
    """Return layers that double the size."""
    conv = nn.ConvTranspose3d(inputs, outputs, 3, 2, 1, output_padding=1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm3d(outputs))


class StackedHourglass(nn.Module):
    """Three hourglasses. The costs of each are added to those of the previous one.

    Shape:
        `(B, 2 C + groups, D, H, W)` to a list of three `(B, D, H, W)`.
    """

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.entry = build_entry(channels, groups)
        self.residual = Residual3d(channels)
        self.hourglasses = nn.ModuleList(Hourglass(channels) for _ in range(3))
        self.heads = nn.ModuleList(build_head(channels) for _ in range(3))

    def forward(self, volume: Tensor) -> list[Tensor]:
        """Return the negated costs of the three hourglasses."""
        first = self.residual(self.entry(volume))
        x, down, up = first, None, None
        costs: list[Tensor] = []
        for hourglass, to_costs in zip(self.hourglasses, self.heads, strict=True):
            x, half, up = hourglass(x, first, down, up)
            down = half if down is None else down
            added = to_costs(x)[:, 0]
            costs.append(added + costs[-1] if costs else added)
        return costs


def cost_volume(left: Tensor, right: Tensor, disparities: int) -> Tensor:
    """Join the left features, at each disparity, with the right ones shifted by it.

    Two of `(B, C, H, W)` to `(B, 2 C, disparities, H, W)`. Positions outside of the right image are zero.
    """
    width = left.shape[-1]
    pairs = [
        F.pad(torch.cat([left[..., d:], right[..., : width - d]], 1), (d, 0)) for d in range(disparities)
    ]
    return torch.stack(pairs, 2)


def correlations(left: Tensor, right: Tensor, disparities: int, groups: int) -> Tensor:
    """Compute the mean product of left and right features in each group of channels, at each disparity.

    Two of `(B, C, H, W)` to `(B, groups, disparities, H, W)`. Positions outside of the right image are zero.
    """
    width = left.shape[-1]
    products = [left[..., d:] * right[..., : width - d] for d in range(disparities)]
    means = [F.pad(p.unflatten(1, (groups, -1)).mean(2), (d, 0)) for d, p in enumerate(products)]
    return torch.stack(means, 2)


def interpolation_weights(source: int, target: int) -> Tensor:
    """Return weights of linear interpolation from `source` to `target` points, float64 `(target, source)`."""
    return F.interpolate(torch.eye(source, dtype=torch.float64)[None], size=target, mode="linear")[0].T


def resize_costs(costs: Tensor, weights: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize costs `(B, D, H, W)` trilinearly to `(B, M, *size)`, in disparity by `weights` `(M, D)`."""
    wide = F.interpolate(costs, size=size, mode="bilinear")
    y: Tensor = (weights.to(wide) @ wide.flatten(2)).unflatten(2, size)
    return y


def soft_argmin(costs: Tensor) -> Tensor:
    """Return the mean disparity under the softmax of negated costs: `(B, M, H, W)` to `(B, H, W)`."""
    disparities = torch.arange(costs.shape[1], device=costs.device, dtype=costs.dtype)
    return (costs.softmax(1) * disparities[:, None, None]).sum(1)


class PSMNet(nn.Module):
    """PSMNet. The defaults of the options are the published ones.

    H and W must be multiples of 16, and at least 4 times the largest window of the pyramid.

    Args:
        max_disparity: Number of disparities, a multiple of 16 [pixels].
        aggregation: `hourglass` for the stacked hourglasses, or `basic`.
        width: Factor of all channels.
        blocks: Number of blocks of the backbone's second stage.
        pool: Side of the largest window of the pyramid, in positions of 4 pixels.
        groups: Number of groups of channels whose correlations are added to the volume. With them the model
            learns sooner.

    Raises:
        InputError: An option or `max_disparity` is invalid.

    Shape:
        Two normalised images `(B, 3, H, W)` to disparities of the left one in pixels, `(B, H, W)`.
    """

    between: Tensor  # Weights of the interpolation of costs.

    def __init__(
        self,
        *,
        max_disparity: int,
        aggregation: Aggregation = "hourglass",
        width: float = 1.0,
        blocks: int = 16,
        pool: int = 64,
        groups: int = 0,
    ) -> None:
        check_psmnet(aggregation=aggregation, width=width, blocks=blocks, pool=pool, groups=groups)
        if max_disparity < MULTIPLE or max_disparity % MULTIPLE:
            raise InputError(f"max_disparity must be a multiple of {MULTIPLE}; got {max_disparity}")
        super().__init__()
        channels = round(CHANNELS * width)
        self.max_disparity, self.groups = max_disparity, groups
        self.backbone = FeatureExtraction(channels, blocks, pool)
        self.aggregation = (StackedHourglass if aggregation == "hourglass" else Basic)(channels, groups)
        weights = interpolation_weights(max_disparity // STEP, max_disparity)
        self.register_buffer("between", weights, persistent=False)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Conv3d | nn.ConvTranspose3d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, left: Tensor, right: Tensor) -> Tensor | list[Tensor]:
        """Return the disparities `(B, H, W)`; in training a list, of each output, with the best last."""
        size = (left.shape[2], left.shape[3])
        of_left, of_right = self.backbone(left, right)
        disparities = self.max_disparity // STEP
        volume = cost_volume(of_left, of_right, disparities)
        if self.groups:
            volume = torch.cat([volume, correlations(of_left, of_right, disparities, self.groups)], 1)
        costs = self.aggregation(volume)
        with torch.autocast(left.device.type, enabled=False):
            used = costs if self.training else costs[-1:]
            results = [soft_argmin(resize_costs(cost.float(), self.between, size)) for cost in used]
        return results if self.training else results[0]


def check_psmnet(*, aggregation: str, width: float, blocks: int, pool: int, groups: int) -> None:
    """Raise `InputError` if an option of PSMNet is invalid."""
    if aggregation not in get_args(Aggregation):
        raise unknown("aggregation of psmnet", aggregation, get_args(Aggregation))
    # With fewer than 8 channels, oneDNN's gradients of a strided 1x1 convolution write outside their memory
    # on CPUs without AVX-512, and end the process (torch 2.15).
    if not 1 / 4 <= width <= 16:
        raise InputError(f"width of psmnet must lie between 1/4 and 16; got {width}")
    if not 1 <= blocks <= 64:
        raise InputError(f"blocks of psmnet must lie between 1 and 64; got {blocks}")
    if not 8 <= pool <= 256 or pool % PYRAMID[-1]:
        raise InputError(f"pool of psmnet must be a multiple of {PYRAMID[-1]} from 8 to 256; got {pool}")
    channels = round(CHANNELS * width)
    if groups and (groups < 0 or channels % groups):
        raise InputError(f"groups of psmnet must be 0 or divide its {channels} channels; got {groups}")


# Models with `build(max_disparity=, **options)`.
STEREO = table(Backbone(name="psmnet", build=PSMNet, dimensions=2, source="arXiv 1803.08669"))
MAX_DISPARITY = 192  # Largest disparity of a model without data.


def check_stereo(name: str, options: Mapping[str, Any]) -> None:
    """Raise InputError if a stereo model or one of its options is unknown, or a value is invalid."""
    check_psmnet(**with_defaults("stereo model", STEREO, name, options))


def subject(backbone: str, size: int | None, options: Mapping[str, Any]) -> Subject:
    """Return a stereo model of pairs of 256 x 512 pixels, or of another height."""
    size = size or 256
    check_stereo(backbone, options)
    # A window of the pyramid must fit into the images, and the largest disparity into their width.
    least = max(STEP * {**STEREO[backbone].options, **options}["pool"], MAX_DISPARITY // 2)
    if size < least or size % MULTIPLE:
        raise InputError(f"--size must be a multiple of {MULTIPLE} from {least} for {backbone}; got {size}")

    def example(count: int) -> Example:
        image = torch.zeros(count, 3, size, 2 * size)
        return image, image.clone()

    return Subject(
        name=backbone,
        build=lambda: STEREO[backbone].build(max_disparity=MAX_DISPARITY, **options),
        example=example,
        description=f"a pair of images of {size}x{2 * size} pixels with disparities below {MAX_DISPARITY}",
        batch=2,
        loss=sum_outputs,
    )

"""Augment whole batches on the device, with a draw for each image.

The images are squares that were resized from any shape, with their original aspect ratio (width / height). A
crop is a box in the image's true geometry, so one resampling undoes the resize and cuts the box. Nothing is
resized twice.

Policies and erasing draw as torchvision's classes do after `torch.manual_seed` with the seed of each image.
Neither the worker nor the other images of the batch matter. Similar operations run once, on all images that
drew them.
"""

from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from math import exp, log, sqrt
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Generator, Tensor
from torch.utils.dlpack import from_dlpack

from backbones import IMAGENET, Normalisation


def normalise(images: Tensor, by: Normalisation = IMAGENET) -> Tensor:
    """Return float32 `(B, 3, H, W)` in channels_last, normalised, from uint8 `(B, H, W, 3)`.

    `by` holds the statistics that the backbone was made for, whatever the images are: a fixed shift and scale
    is all that matters.
    """
    x = images.permute(0, 3, 1, 2).float()  # a view of channels-last memory
    mean, std = (torch.tensor(v, device=x.device).view(3, 1, 1) * 255 for v in by)
    return (x - mean) / std


def draw_boxes(aspect: Tensor, *, scale: float, flip: bool, generator: Generator) -> Tensor:
    """Draw a random box for each image: width, height and centre as fractions of the image, `(N, 4)`.

    The box has `scale` to 1 of the image's area and a ratio of 3/4 to 4/3; at a `scale` of 1 it is the whole
    image. Parts that reach over the edges are cut off. `flip` gives half of the boxes a negative width, which
    mirrors the image. The CPU `generator` makes the draws the same on every device and worker. `aspect` has
    shape `(N,)`.

    Source: C. Szegedy et al., Going Deeper with Convolutions (2014), arXiv 1409.4842, section 6.
    """
    draw = torch.rand(5, len(aspect), generator=generator)
    area = aspect * (scale + (1 - scale) * draw[0])  # the image is `aspect` wide and 1 high
    ratio = torch.exp(log(4 / 3) * (2 * draw[1] - 1))
    if scale == 1:
        ratio = aspect
    width = torch.minimum((area * ratio).sqrt(), aspect) / aspect
    height = (area / ratio).sqrt().clamp(max=1)
    x, y = (2 * draw[2] - 1) * (1 - width), (2 * draw[3] - 1) * (1 - height)
    if flip:
        width = torch.where(draw[4] < 0.5, -width, width)
    return torch.stack([width, height, x, y], dim=1)


def crop_boxes(images: Tensor, boxes: Tensor, size: int, by: Normalisation = IMAGENET) -> Tensor:
    """Cut the box of each image, resize, normalise: uint8 `(B, S, S, 3)` to float32 `(B, 3, size, size)`."""
    if images.shape[1] == size and bool((boxes == boxes.new_tensor([1, 1, 0, 0])).all()):
        return normalise(images, by)
    return resample(normalise(images, by), boxes, size)


def centre_crop(images: Tensor, aspect: Tensor, size: int) -> Tensor:
    """Return the largest centred square of each image: uint8 `(B, S, S, 3)` -> uint8 `(B, size, size, 3)`.

    The result is uint8, so that validation and an exported model get exactly the same images.
    """
    if images.shape[1] == size and bool((aspect == 1).all()):
        return images
    aspect = aspect.cpu()
    zero = torch.zeros_like(aspect)
    boxes = torch.stack([(1 / aspect).clamp(max=1), aspect.clamp(max=1), zero, zero], dim=1)
    x = resample(images.permute(0, 3, 1, 2).float(), boxes, size)
    return x.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1)


def resample(images: Tensor, boxes: Tensor, size: int, mode: str = "bilinear") -> Tensor:
    """Resize boxes `(B, 4)` of width, height and centre, as fractions of the image relative to its centre."""
    width, height, x, y = boxes.to(images.device, non_blocking=True).unbind(1)
    zero = torch.zeros_like(x)
    affine = torch.stack([width, zero, x, zero, height, y], dim=1).view(-1, 2, 3)
    grid = F.affine_grid(affine, [len(images), 3, size, size], align_corners=False)
    crops = F.grid_sample(images, grid, mode=mode, padding_mode="border", align_corners=False)
    return crops.contiguous(memory_format=torch.channels_last)


# Operations of both policies, numbered as in torchvision.
IDENTITY, SHEAR_X, SHEAR_Y, TRANSLATE_X, TRANSLATE_Y, ROTATE, BRIGHTNESS = range(7)
COLOR, CONTRAST, SHARPNESS, POSTERIZE, SOLARIZE, AUTOCONTRAST, EQUALIZE = range(7, 14)
LEVELS = 31  # magnitudes of an operation
STRENGTH = 9  # the level of RandAugment
TRIES = 10  # boxes that are drawn until one fits into the image


def apply_policy(name: str, images: Tensor, seeds: Tensor) -> Tensor:
    """Apply a policy to uint8 images `(B, H, W, 3)` with seeds `(B,)`.

    `trivial` is TrivialAugment, `rand` is RandAugment with two operations of strength 9. Sources: S. Müller
    and F. Hutter, TrivialAugment (2021), arXiv 2103.10158; E. Cubuk et al., RandAugment (2019), arXiv
    1909.13719.
    """
    x, position = images.permute(0, 3, 1, 2), np.arange(len(seeds))  # of each image in `x`
    for operations, magnitudes in zip(*draw_operations(name, seeds, images.shape[1]), strict=True):
        order = np.argsort(operations, kind="stable")
        drawn, strengths = (values[order].reshape(-1, 1, 1, 1) for values in (operations, magnitudes))
        # The kernels take whole numbers in float32.
        x = x.index_select(0, _send(position[order], x)).float()
        position[order] = np.arange(len(order))
        ends = np.searchsorted(drawn.ravel(), [*KERNELS, EQUALIZE + 1]).tolist()
        parts = zip(KERNELS.values(), x.split(np.diff(ends).tolist()), pairwise(ends), strict=True)
        changed = [kernel(part, drawn[a:b], strengths[a:b]) for kernel, part, (a, b) in parts if a < b]
        x = torch.cat(changed).clamp_(0, 255).to(torch.uint8)
    x = x.index_select(0, _send(position, x)).contiguous(memory_format=torch.channels_last)
    return x.permute(0, 2, 3, 1)


def erase_boxes(images: Tensor, seeds: Tensor, probability: float) -> Tensor:
    """Erase a box of each image with a probability, float `(B, 3, H, W)` -> the same shape.

    Source: Z. Zhong et al., Random Erasing (2017), arXiv 1708.04896.
    """
    height, width = images.shape[2:]
    rows, columns = (np.zeros((len(images), side), bool) for side in (height, width))
    for i, words in enumerate(_draw_words(seeds, 1 + 2 * TRIES + 2)):
        for _ in range(TRIES if _draw_fraction(words) < probability else 0):
            area = height * width * (0.02 + (0.33 - 0.02) * _draw_fraction(words))
            ratio = exp(log(0.3) + log(3.3 / 0.3) * _draw_fraction(words))
            h, w = round(sqrt(area * ratio)), round(sqrt(area / ratio))
            if h < height and w < width:
                top, left = next(words) % (height - h + 1), next(words) % (width - w + 1)
                rows[i, top : top + h], columns[i, left : left + w] = True, True
                break
    box = _send(rows[:, None, :, None], images) & _send(columns[:, None, None], images)
    return images.masked_fill(box, 0)


def draw_operations(policy: str, seeds: Tensor, side: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Draw the operations of images of `side` pixels and their magnitudes, `(turns, B)` each."""
    is_trivial = policy == "trivial"
    turns = 1 if is_trivial else 2
    operations = np.zeros((turns, len(seeds)), np.int64)
    magnitudes = np.zeros((turns, len(seeds)), np.float32)
    table = _list_magnitudes(policy, side)
    for i, words in enumerate(_draw_words(seeds, 4)):
        for turn in range(turns):
            operation = next(words) % len(table)
            has_level = SHEAR_X <= operation <= SOLARIZE
            level = next(words) % LEVELS if is_trivial and has_level else STRENGTH
            is_signed = SHEAR_X <= operation <= SHARPNESS
            sign = -1 if is_signed and _draw_fraction(words) <= 0.5 else 1
            operations[turn, i], magnitudes[turn, i] = operation, sign * table[operation][level]
    return operations, magnitudes


@cache
def _list_magnitudes(policy: str, side: int) -> list[list[float]]:
    """Return all magnitudes of each operation."""
    shear, shift, angle, factor, bits = (
        (0.99, 32.0, 135.0, 0.99, 6) if policy == "trivial" else (0.3, 150.0 / 331.0 * side, 30.0, 0.9, 4)
    )
    largest = [0.0, shear, shear, shift, shift, angle, *[factor] * 4]
    rows = [torch.linspace(0.0, value, LEVELS) for value in largest]
    rows.append((8 - torch.arange(LEVELS) / ((LEVELS - 1) / bits)).round())  # bits of Posterize
    rows.append(torch.linspace(1.0, 0.0, LEVELS))  # threshold of Solarize
    return [row.tolist() for row in (*rows, *[torch.zeros(LEVELS)] * 2)]


def _draw_words(seeds: Tensor, count: int) -> Iterator[Iterator[int]]:
    """Yield for each seed the first numbers of 32 bits of torch's CPU generator after `manual_seed`.

    NumPy has the same generator. torch takes an operator call for each number.
    """
    bits = np.random.MT19937()
    state = np.random.RandomState(bits)
    for seed in seeds.tolist():
        state.seed(seed)
        yield iter(bits.random_raw(count).tolist())


def _draw_fraction(words: Iterator[int]) -> float:
    """Return a number from 0 to 1, as `torch.rand` does."""
    return (next(words) & 0xFFFFFF) / 0x1000000


def _send(values: NDArray[Any], to: Tensor) -> Tensor:
    tensor = from_dlpack(values)  # without the operator calls of `from_numpy`
    return tensor if to.is_cpu else tensor.to(to.device, non_blocking=True)


def _warp(x: Tensor, operations: NDArray[Any], magnitudes: NDArray[Any]) -> Tensor:
    """Shear, translate or rotate, to the nearest pixel."""
    height, width = x.shape[2:]
    kinds = np.arange(SHEAR_X, BRIGHTNESS)[:, None]
    strengths = magnitudes.ravel().astype(float)
    shear_x, shear_y, shift_x, shift_y, angle = np.where(operations.ravel() == kinds, strengths, 0)
    cos, sin = np.cos(np.radians(angle)), np.sin(np.radians(angle))
    matrix = [
        [cos, shear_x - sin, shear_x * height / 2 - np.trunc(shift_x)],  # Shears keep the upper left corner.
        [shear_y + sin, cos, shear_y * width / 2 - np.trunc(shift_y)],
    ]
    scaled = np.array(matrix, np.float32).transpose(2, 1, 0) / np.array([width / 2, height / 2], np.float32)
    grid = _list_pixels(height, width, x.device).expand(len(x), -1, -1).bmm(_send(scaled, x))
    return F.grid_sample(x, grid.view(-1, height, width, 2), mode="nearest", align_corners=False)


@cache
def _list_pixels(height: int, width: int, device: torch.device) -> Tensor:
    """Return x, y and 1 of each pixel, relative to the centre of the image, `(1, H * W, 3)`."""
    y, x = np.mgrid[:height, :width].reshape(2, -1)
    pixels = np.stack([x - (width - 1) / 2, y - (height - 1) / 2, np.ones(len(x))], axis=1)
    return torch.from_numpy(pixels[None].astype(np.float32)).to(device)


def _blend(x: Tensor, operations: NDArray[Any], magnitudes: NDArray[Any]) -> Tensor:
    """Blend with black (brightness), with the grey image (colour) or with its mean (contrast)."""
    red, green, blue = x.split(1, dim=1)
    grey = (red * 0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114).floor_()
    other = torch.where(_send(operations == COLOR, x), grey, grey.mean((2, 3), keepdim=True))
    weight = np.where(operations == BRIGHTNESS, 0, -magnitudes)
    return (x * _send(1 + magnitudes, x)).addcmul_(other, _send(weight, x))


def _sharpen(x: Tensor, _: NDArray[Any], magnitudes: NDArray[Any]) -> Tensor:
    """Blend all but the edges with the blurred image."""
    kernel = np.array([[[[1, 1, 1], [1, 5, 1], [1, 1, 1]]]] * 3, np.float32) / 13
    blurred = F.conv2d(x, _send(kernel, x), groups=3).round_()
    inner = x[..., 1:-1, 1:-1]
    inner.addcmul_(blurred.sub_(inner), _send(-magnitudes, x))
    return x


def _quantise(x: Tensor, operations: NDArray[Any], magnitudes: NDArray[Any]) -> Tensor:
    """Keep the leading bits (posterize), or invert what is as bright as a threshold (solarize)."""
    threshold = np.where(operations == SOLARIZE, 255 * magnitudes, 256)
    step = np.where(operations == POSTERIZE, 2 ** (8 - magnitudes), 1)
    x = torch.where(x >= _send(threshold, x), 255 - x, x)
    return x - x % _send(step, x)


def _stretch(x: Tensor, *_: object) -> Tensor:
    """Stretch each channel to 0 to 255 (autocontrast)."""
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    return torch.where(low == high, x, (x - low) / ((high - low) * (1 / 255)))


def _equalise(x: Tensor, *_: object) -> Tensor:
    """Equalise the histogram of each channel."""
    values = x.flatten(2).long()
    counts = torch.zeros(*x.shape[:2], 256, device=x.device).scatter_(2, values, 1.0, reduce="add")
    total = counts.cumsum(2)
    step = total.remainder(values.shape[2]).amax(2, keepdim=True) // 255  # without the largest value
    table = (total - counts) / step + 0.5  # rounded down by the caller
    return torch.where(step == 0, values, table.gather(2, values)).view(x.shape)


# The kernels, by the first of their operations.
KERNELS: dict[int, Callable[[Tensor, NDArray[Any], NDArray[Any]], Tensor]] = {
    IDENTITY: lambda x, *_: x,
    SHEAR_X: _warp,
    BRIGHTNESS: _blend,
    SHARPNESS: _sharpen,
    POSTERIZE: _quantise,
    AUTOCONTRAST: _stretch,
    EQUALIZE: _equalise,
}

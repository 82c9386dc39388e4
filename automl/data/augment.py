"""Crop and flip whole batches on the device, with a draw for each image.

The images are squares that were resized from any shape, with their original aspect ratio (width / height). A
crop is a box in the image's true geometry, so one resampling undoes the resize and cuts the box. Nothing is
resized twice.
"""

from math import log

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

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

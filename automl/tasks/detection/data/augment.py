"""Scale, crop and mirror an image with its boxes and masks, on the device of the image."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torchvision.ops import masks_to_boxes
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2.functional import horizontal_flip, resize

LEAST = 1.0  # smallest side of a box after a crop, in pixels


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """A random change of an image: its relative size, and the position of the crop, from 0 to 1."""

    scale: float
    x: float
    y: float
    mirrored: bool


def draw_augmentations(
    count: int, generator: np.random.Generator, *, flip: bool, scale: tuple[float, float]
) -> list[Augmentation]:
    """Draw a change for each of `count` images. The logarithm of its scale is uniform within `scale`."""
    numbers = generator.random((count, 4))
    sizes = np.exp(np.log(scale[0]) + numbers[:, 0] * (np.log(scale[1]) - np.log(scale[0])))
    return [
        Augmentation(scale=float(s), x=x, y=y, mirrored=flip and mirrored < 0.5)
        for s, (_, x, y, mirrored) in zip(sizes, numbers.tolist(), strict=True)
    ]


def augment(
    image: Tensor, target: dict[str, Tensor], drawn: Augmentation, most: int
) -> tuple[Tensor, dict[str, Tensor]]:
    """Apply an augmentation to an image `(3, H, W)` and its objects; a side has at most `most` pixels
    afterwards.

    `target` holds `boxes` `(N, 4)` as left, top, right and bottom in pixels, `labels` `(N,)`, and optionally
    `masks` `(N, H, W)`. Objects of which the crop leaves less than LEAST pixels are removed. A cropped box
    becomes the bounding box of its mask.
    """
    height, width = image.shape[1:]
    if drawn.scale != 1:
        rows, columns = (max(1, round(side * drawn.scale)) for side in (height, width))
        image = resize(image, [rows, columns], antialias=True)
        boxes = target["boxes"] * torch.tensor(
            [columns / width, rows / height] * 2, device=image.device, dtype=target["boxes"].dtype
        )
        target = {**target, "boxes": boxes}
        if "masks" in target:
            masks = target["masks"].new_zeros(0, rows, columns)
            if len(target["masks"]):
                masks = resize(target["masks"], [rows, columns], InterpolationMode.NEAREST_EXACT)
            target["masks"] = masks
        height, width = rows, columns
    if max(height, width) > most:
        image, target = _crop(image, target, drawn, most)
        width = image.shape[2]
    if drawn.mirrored:
        left, top, right, bottom = target["boxes"].unbind(1)
        boxes = torch.stack([width - right, top, width - left, bottom], dim=1)
        image, target = horizontal_flip(image), {**target, "boxes": boxes}
        if "masks" in target:
            target["masks"] = horizontal_flip(target["masks"])
    return image, target


def _crop(
    image: Tensor, target: dict[str, Tensor], drawn: Augmentation, most: int
) -> tuple[Tensor, dict[str, Tensor]]:
    height, width = image.shape[1:]
    left, top = round(drawn.x * max(0, width - most)), round(drawn.y * max(0, height - most))
    right, bottom = min(width, left + most), min(height, top + most)
    moved = target["boxes"] - torch.tensor([left, top, left, top], device=image.device)
    sides = torch.tensor([right - left, bottom - top] * 2, device=image.device, dtype=moved.dtype)
    boxes = torch.minimum(moved.clamp(min=0), sides)
    keep = ((boxes[:, 2:] - boxes[:, :2]) >= LEAST).all(1)
    cropped_target = {**target, "boxes": boxes}
    if "masks" in target:
        cropped_target["masks"] = target["masks"][:, top:bottom, left:right]
        keep &= (cropped_target["masks"] > 0).flatten(1).any(1)
        cropped = keep & (boxes != moved).any(1)
        if cropped.any():
            # To the outer edges of the outermost pixels.
            ends = torch.tensor([0, 0, 1, 1], device=image.device)
            cropped_target["boxes"][cropped] = masks_to_boxes(cropped_target["masks"][cropped]) + ends
    return image[:, top:bottom, left:right], {name: value[keep] for name, value in cropped_target.items()}

"""Augmentation policies of torchvision on batches on the device, each image with its own draw.

The draws of an image depend on its seed alone, and not on who trains it beside which others.
"""

from collections.abc import Callable

import torch
from torch import Tensor

Augment = Callable[[Tensor, Tensor], Tensor]


def make_policy(name: str) -> Augment:
    """`trivial`, or `rand` for two operations of strength 9, on uint8 `(B, H, W, 3)` and seeds `(B,)`.

    Sources: S. Müller and F. Hutter, TrivialAugment (2021), arXiv 2103.10158; E. Cubuk et al., RandAugment
    (2019), arXiv 1909.13719.
    """
    from torchvision.transforms import v2

    transform = v2.TrivialAugmentWide() if name == "trivial" else v2.RandAugment()
    return lambda images, seeds: _apply_to_each(transform, images.permute(0, 3, 1, 2), seeds).permute(
        0, 2, 3, 1
    )


def make_erasing(probability: float) -> Augment:
    """A box of each image becomes its mean, with this probability: float `(B, 3, H, W)` -> the same.

    Source: Z. Zhong et al., Random Erasing (2017), arXiv 1708.04896.
    """
    from torchvision.transforms import v2

    return lambda images, seeds: _apply_to_each(v2.RandomErasing(probability), images, seeds)


def _apply_to_each(transform: Callable[[Tensor], Tensor], images: Tensor, seeds: Tensor) -> Tensor:
    """Changes no generator: torchvision draws on torch's own one."""
    made = []
    with torch.random.fork_rng(devices=[]):
        for image, seed in zip(images, seeds.tolist(), strict=True):
            torch.default_generator.manual_seed(seed)
            made.append(transform(image))
    return torch.stack(made).contiguous(memory_format=torch.channels_last)


def apply_cutmix(
    x: Tensor, y: Tensor, other: Tensor, share: Tensor, centre: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The first `len(share)` images, each with a box of that at `other`: `(mixed, y, other's y, share)`.

    x: `(B, C, H, W)`. share: of its own area that an image keeps. centre: of the box, as parts of the image,
    `(B, 2)`; what would reach over the edge is cut off, and the share that is returned is what is left.
    Source: S. Yun et al., CutMix (2019), arXiv 1905.04899, section 3.2.
    """
    (height, width), own = x.shape[2:], slice(len(share))
    side = (1 - share).sqrt() / 2
    inside = []
    for size, middle in ((height, centre[:, 0]), (width, centre[:, 1])):
        at = (torch.arange(size, device=x.device) + 0.5) / size
        inside.append((at - middle[:, None]).abs() < side[:, None])  # (B, size)
    box = inside[0][:, :, None] & inside[1][:, None, :]  # (B, H, W)
    kept = 1 - box.flatten(1).float().mean(1)
    return torch.where(box[:, None], x[other], x[own]), y[own], y[other], kept

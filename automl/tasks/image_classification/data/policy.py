"""Apply torchvision's augmentation policies to batches on the device, with a draw for each image.

The draws of an image depend only on its seed, not on the worker or the other images of the batch.
"""

from collections.abc import Callable

import torch
from torch import Tensor

Augment = Callable[[Tensor, Tensor], Tensor]


def make_policy(name: str) -> Augment:
    """Return a function that applies a policy to uint8 images `(B, H, W, 3)` with seeds `(B,)`.

    `trivial` is TrivialAugment, `rand` is RandAugment with two operations of strength 9. Sources: S. Müller
    and F. Hutter, TrivialAugment (2021), arXiv 2103.10158; E. Cubuk et al., RandAugment (2019), arXiv
    1909.13719.
    """
    from torchvision.transforms import v2

    transform = v2.TrivialAugmentWide() if name == "trivial" else v2.RandAugment()
    return lambda images, seeds: _apply_to_each(transform, images.permute(0, 3, 1, 2), seeds).permute(
        0, 2, 3, 1
    )


def make_erasing(probability: float) -> Augment:
    """Return a function that erases a box of each image with a probability, float `(B, 3, H, W)` -> the same
    shape.

    Source: Z. Zhong et al., Random Erasing (2017), arXiv 1708.04896.
    """
    from torchvision.transforms import v2

    return lambda images, seeds: _apply_to_each(v2.RandomErasing(probability), images, seeds)


def _apply_to_each(transform: Callable[[Tensor], Tensor], images: Tensor, seeds: Tensor) -> Tensor:
    """Transform each image with its own seed. torchvision draws from torch's generator, which is restored."""
    transformed = []
    with torch.random.fork_rng(devices=[]):
        for image, seed in zip(images, seeds.tolist(), strict=True):
            torch.default_generator.manual_seed(seed)
            transformed.append(transform(image))
    return torch.stack(transformed).contiguous(memory_format=torch.channels_last)


def apply_cutmix(
    x: Tensor, y: Tensor, other: Tensor, fraction: Tensor, centre: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Replace a box of each of the first images by that of another image.

    Source: S. Yun et al., CutMix (2019), arXiv 1905.04899, section 3.2.

    Args:
        x: the images, `(B, C, H, W)`.
        y: their labels, `(B,)`.
        other: indices of the images that give the boxes, `(N,)`.
        fraction: the fraction of its area that each image keeps, `(N,)`.
        centre: the centres of the boxes, as fractions of the sides, `(N, 2)`.

    Returns:
        The N mixed images, their labels, the labels of the others, and the fractions that are kept. A box
            that reaches over the edge is cut off, so more than `fraction` may be kept.
    """
    (height, width), own = x.shape[2:], slice(len(fraction))
    side = (1 - fraction).sqrt() / 2
    inside = []
    for size, middle in ((height, centre[:, 0]), (width, centre[:, 1])):
        at = (torch.arange(size, device=x.device) + 0.5) / size
        inside.append((at - middle[:, None]).abs() < side[:, None])  # (B, size)
    box = inside[0][:, :, None] & inside[1][:, None, :]  # (B, H, W)
    kept = 1 - box.flatten(1).float().mean(1)
    return torch.where(box[:, None], x[other], x[own]), y[own], y[other], kept

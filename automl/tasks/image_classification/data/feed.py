"""Batches of raw images on the device, and CutMix there."""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from automl.config.device import free_memory, is_gpu
from automl.tasks.image_classification.data.dataset import Images

RESIDENT_FRACTION = 0.4  # of the free memory of a trial, for its images; the rest is for the model
AHEAD = 3  # batches that wait for the device


class Feed:
    """Batches of the rows of `images` on `device`, as uint8 `(B, side, side, 3)`.

    On a GPU the rows are copied there once if they fit into 40 % of the free memory times `memory_fraction`.
    Otherwise a thread gathers them into pinned memory ahead of time, and the copies overlap with computation.
    On a CPU batches are read from the memory map.
    """

    def __init__(self, images: Images, device: torch.device, memory_fraction: float = 1.0) -> None:
        self.images, self.device = images, device
        self.rows: Tensor | None = None
        size = len(images) * images.side**2 * 3
        if is_gpu(device) and size <= RESIDENT_FRACTION * memory_fraction * free_memory(device):
            self.rows = copy_to_device(images, device)

    def __call__(self, order: Sequence[Tensor]) -> Iterator[Tensor]:
        """Yield one batch for each tensor of indices in `order`."""
        if self.rows is not None:
            sizes = [len(index) for index in order]
            for index in torch.cat(list(order)).to(self.device).split(sizes):  # one copy, not one a batch
                yield self.rows[index]
        elif is_gpu(self.device):
            yield from prefetch(self.images, order, self.device)
        else:
            for index in order:
                yield self.images.gather(index)


def copy_to_device(images: Images, device: torch.device) -> Tensor:
    """Return all rows on the device, copied in blocks so that the host never holds them twice."""
    rows = torch.empty(len(images), images.side, images.side, 3, dtype=torch.uint8, device=device)
    for block in torch.arange(len(images)).split(4096):
        rows[block[0] : block[-1] + 1] = images.gather(block).to(device)
    return rows


def prefetch(images: Images, order: Sequence[Tensor], device: torch.device) -> Iterator[Tensor]:
    """Yield batches that a thread gathers, up to `AHEAD` in advance. It ends with the consumer."""
    pin = is_gpu(device)

    def gather(index: Tensor) -> Tensor:
        rows = images.gather(index)
        return rows.pin_memory() if pin else rows

    pending: deque[Future[Tensor]] = deque()
    with ThreadPoolExecutor(1) as pool:
        for index in order:
            pending.append(pool.submit(gather, index))
            if len(pending) > AHEAD:
                yield pending.popleft().result().to(device, non_blocking=True)
        while pending:
            yield pending.popleft().result().to(device, non_blocking=True)


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

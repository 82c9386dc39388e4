"""Move raw images to the device: once if they fit there, otherwise in prefetched batches."""

import queue
import threading
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from automl.config.device import free_memory, is_gpu, pins_memory
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
    """Yield batches that a thread gathers, up to `AHEAD` of them in advance.

    An error of the thread is raised here. If the consumer stops early, the thread ends.
    """
    ready: queue.Queue[Tensor | BaseException | None] = queue.Queue(AHEAD)
    stopped = threading.Event()
    pin = pins_memory(device)

    def put(item: Tensor | BaseException | None) -> None:
        while not stopped.is_set():
            try:
                return ready.put(item, timeout=0.1)
            except queue.Full:
                continue

    def gather() -> None:
        try:
            for index in order:
                if stopped.is_set():
                    return
                rows = images.gather(index)
                put(rows.pin_memory() if pin else rows)
            put(None)
        except BaseException as error:
            put(error)

    thread = threading.Thread(target=gather, daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item.to(device, non_blocking=True)
    finally:
        stopped.set()
        thread.join()

"""Measure images per second on the model's device: the project's cache against ImageFolder with a DataLoader.

Both deliver normalised random resized crops with flips in batches of 64 from the same JPEG files. ImageFolder
decodes with all workers, as in every epoch. The cache was decoded once before.
"""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from harness import Row, compare, seconds, write
from pictures import make_pictures
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

from automl.config.device import find_device, is_gpu
from automl.config.runtime import Runtime
from automl.task import Task, open_task
from automl.tasks.image_classification import ImageData, ImageTraining
from backbones import IMAGENET
from search.config import TrialConfig

DEVICE = find_device()
ON_GPU = is_gpu(DEVICE)
BATCH = 64
IMAGES = 8192 if ON_GPU else 2048


def time_image_folder(folder: Path, size: int) -> Callable[[], float]:
    loader = DataLoader(
        datasets.ImageFolder(
            str(folder / "train"),
            transforms.Compose(
                [
                    transforms.RandomResizedCrop(size, scale=(0.35, 1)),
                    transforms.RandomHorizontalFlip(),
                    transforms.ToTensor(),
                    transforms.Normalize(*IMAGENET),
                ]
            ),
        ),
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=os.cpu_count() or 1,
        pin_memory=ON_GPU,
        persistent_workers=True,
    )

    def epoch() -> None:
        for x, y in loader:
            x.to(DEVICE, non_blocking=True), y.to(DEVICE, non_blocking=True)

    return lambda: len(loader) * BATCH / seconds(epoch, DEVICE)


def check_batch(x: torch.Tensor, size: int) -> None:
    assert x.shape == (BATCH, 3, size, size), x.shape
    assert x.dtype == torch.float32
    assert abs(x.mean().item()) < 1, "normalised"


def main() -> None:
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["AUTOML_CACHE"] = f"{scratch}/cache"
        folder = make_pictures(Path(scratch) / "pictures", train=IMAGES * 5 // 4, test=40)
        for size in (64, 128):
            config = TrialConfig(
                data=ImageData(source="folder", path=str(folder), size=size),
                training=ImageTraining(batch_size=BATCH, epochs=1),
            )
            task = open_task(config, Runtime(device=DEVICE))
            check_batch(next(iter(task.batches(0)))[0], size)

            def ours(task: Task = task) -> float:
                def epoch() -> None:
                    for _ in task.batches(0):
                        pass

                return task.steps() * BATCH / seconds(epoch, DEVICE)

            theirs = time_image_folder(folder, size)
            ours(), theirs()
            rows.append(
                compare(
                    f"{size}px, batch {BATCH}",
                    "ImageFolder + DataLoader",
                    ours,
                    theirs,
                    unit="images/s",
                    rounds=5,
                    higher_is_better=True,
                )
            )
    write("data", rows)


if __name__ == "__main__":
    main()

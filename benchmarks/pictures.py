"""Generate a folder of JPEG files with structure at every scale, for benchmarks without a dataset."""

from pathlib import Path

import numpy as np
from PIL import Image


def make_pictures(folder: Path, *, train: int, test: int, side: int = 160, classes: int = 10) -> Path:
    """Write `folder/{train,val}/<class>/*.jpg`: `train` and `test` images in all, the same in every call."""
    draw = np.random.default_rng(0)
    for split, count in (("train", train), ("val", test)):
        for i in range(count):
            target = folder / split / f"class{i % classes}"
            target.mkdir(parents=True, exist_ok=True)
            width = int(side * draw.uniform(1, 1.5))
            layers = [
                Image.fromarray(draw.integers(0, 256, (n, n, 3), np.uint8)).resize(
                    (width, side), Image.Resampling.BICUBIC
                )
                for n in (3, 9, 27)
            ]
            mixed = np.mean([np.asarray(layer) for layer in layers], axis=0).astype(np.uint8)
            Image.fromarray(mixed).save(target / f"{i:05}.jpg", quality=85)
    return folder

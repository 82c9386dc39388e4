"""Settings of a search that fit a folder of images."""

from pathlib import Path
from typing import Any

import numpy as np

from automl.base.units import pluralize
from automl.data.pictures import read_sizes
from automl.search.prepare import Fit
from automl.tasks.image_classification.data import open_image_records

MANY = 5000  # number of training images from which deeper backbones are also tried
SIDES = (32, 48, 64, 96, 128)  # image sizes [pixels]; the last one is the space's own
OPENED = 200  # maximum number of images whose sizes are read


def fit(data: str, *, backbone: str | None, size: int | None) -> Fit:
    """Choose the space `folder`, with the largest size that does not enlarge half of the images.

    With few images, choose a single backbone, since few trials cannot compare several.
    """
    settings: dict[str, Any] = {"space": "folder"}
    listed = open_image_records("folder", path=data, size=size or SIDES[-1])
    splits = ["train", "validation"] if "validation" in listed.held_out else ["train"]
    rows = np.sort(np.concatenate([listed.whole[split] for split in splits]))  # in the order of the dataset
    images = [listed.file.inputs[row].image for row in rows]
    files = [image for image in images if isinstance(image, Path)]
    sizes = sorted(min(size) for size in read_sizes(files[:: max(1, len(files) // OPENED)]))
    chosen, because = [], [f"{pluralize(len(rows), 'image files')} for training and validation"]
    if backbone is None and len(rows) < MANY:
        settings["backbone"] = "xresnet18"
        chosen.append("backbone xresnet18")
    if size is None and sizes:
        median = sizes[len(sizes) // 2]
        settings["size"] = max((side for side in SIDES if side <= median), default=SIDES[0])
        chosen.append(f"{settings['size']} px")
        because.append(f"half of them {median} px or less at the shorter side")
    if not chosen:
        return Fit(settings=settings)
    why = f"{' at '.join(chosen)}, since there are {', '.join(because)}; --backbone and --size choose others"
    return Fit(settings=settings, why=why)

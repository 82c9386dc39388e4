"""Choose the space, backbone, image size and epochs of a search from its data."""

from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from automl.config.settings import Settings
from automl.data.images import open_image_records
from automl.data.images.image_overview import read_sizes
from automl.tasks import Task, task_of_data
from search.spaces import SPACES

MANY = 5000  # training images from which deeper backbones are tried, too
SIDES = (32, 48, 64, 96, 128)  # pixels; the last one is the space's own
STEPS = 300  # of a training, below which one of few images may end at chance
OPENED = 200  # images at most whose sizes are read


@dataclass(frozen=True, kw_only=True)
class Fit:
    """settings: what fits, as `Settings` takes it. why: in a line; empty where the space says all."""

    settings: dict[str, Any]
    why: str = ""


def fit(data: str, *, backbone: str | None = None, size: int | None = None) -> Fit:
    """Return the settings that fit the data at the path `data`.

    Data that a task recognises get the space that its declaration names (`TaskSpec.space`). Other images get
    `folder`, at the largest size that does not blow up half of them, and where they are few with one
    backbone, since few trials are too few to choose among several. `backbone` and `size` are kept where they
    are given.

    Raises InputError for an archive that cannot be extracted, and a folder that is no dataset.
    """
    if (spec := task_of_data(data)) is not None:
        return Fit(settings={"space": spec.space})
    settings: dict[str, Any] = {"space": "folder"}
    listed = open_image_records("folder", path=data, size=size or SIDES[-1])
    splits = ["train", "validation"] if "validation" in listed.held_out else ["train"]
    rows = np.sort(np.concatenate([listed.whole[split] for split in splits]))  # as the dataset gives them
    images = [listed.file.inputs[row].image for row in rows]
    files = [image for image in images if isinstance(image, Path)]
    sizes = sorted(min(size) for size in read_sizes(files[:: max(1, len(files) // OPENED)]))
    chosen, because = [], [f"{len(rows)} training images"]
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


def may_fit_epochs(settings: Settings) -> bool:
    """Return whether epochs follow from the data. Those of a user's own space and of bundled data do not."""
    of_the_table = isinstance(settings.space, str) and settings.space in SPACES
    return settings.epochs is None and of_the_table and (settings.data is not None or settings.subset < 1)


def fit_epochs(settings: Settings, task: Task) -> Fit | None:
    """Choose the epochs of a training with few steps an epoch; None where the space's are enough.

    task: the baseline's, with the data and the batch size of the search.
    """
    training = task.config.training
    steps = max(1, task.steps() // training.accumulate)  # of the optimiser
    enough = ceil(STEPS / steps)
    if not may_fit_epochs(settings) or training.epochs >= enough:
        return None
    why = (
        f"{enough} epochs in the place of {training.epochs}, since an epoch has {steps} steps of "
        f"{training.batch_size * training.accumulate} {task.noun} and a training needs about {STEPS}; "
        f"--epochs chooses another number"
    )
    return Fit(settings={"epochs": enough}, why=why)

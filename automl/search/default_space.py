"""Defaults of a search that depend on its data: the space, the backbone, the image size, the epochs."""

from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from automl.config.settings import Settings
from automl.tasks import Task, task_of_data
from automl.tasks.image_classification.data import open_image_records
from automl.tasks.image_classification.data.overview import read_sizes
from search.config import TASKS
from search.spaces import SPACES

MANY = 5000  # number of training images from which deeper backbones are also tried
SIDES = (32, 48, 64, 96, 128)  # image sizes [pixels]; the last one is the space's own
STEPS = 300  # minimum number of steps; shorter trainings may end at chance level
OPENED = 200  # maximum number of images whose sizes are read


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Settings that fit the data.

    Attributes:
        settings: Fields of `Settings`.
        why: The reason in one line. Empty if the space determines everything.
    """

    settings: dict[str, Any]
    why: str = ""


def fit(data: str, *, backbone: str | None = None, size: int | None = None, is_text: bool = False) -> Fit:
    """Choose settings for the data at the path `data`.

    If a task recognises the data, choose its space (`TaskSpec.space`). With `is_text`, source files are texts
    of a language model instead of functions to search. Otherwise choose `folder`, with the
    largest size that does not enlarge half of the images. With few images, choose a single backbone, since
    few trials cannot compare several. `backbone` and `size` are kept if they are set.

    Raise InputError if an archive cannot be extracted, or a folder is not a dataset.
    """
    spec = task_of_data(data)
    if is_text and spec is not None and spec.as_text:
        spec = TASKS[spec.as_text]
    if spec is not None:
        return Fit(settings={"space": spec.space})
    settings: dict[str, Any] = {"space": "folder"}
    listed = open_image_records("folder", path=data, size=size or SIDES[-1])
    splits = ["train", "validation"] if "validation" in listed.held_out else ["train"]
    rows = np.sort(np.concatenate([listed.whole[split] for split in splits]))  # in the order of the dataset
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
    """Return True if epochs depend on the data, unlike with a study, a user's space or bundled data."""
    of_the_table = isinstance(settings.space, str) and settings.space in SPACES
    is_free = settings.epochs is None and settings.study is None
    return is_free and of_the_table and (settings.data is not None or settings.subset < 1)


def fit_epochs(settings: Settings, task: Task) -> Fit | None:
    """Choose the epochs of a training with few steps per epoch. Return None if the space's suffice.

    `task` is that of the baseline, with the data and the batch size of the search.
    """
    training = task.config.training
    steps = max(1, task.steps() // training.accumulate)  # optimiser steps
    enough = ceil(STEPS / steps)
    if not may_fit_epochs(settings) or training.epochs >= enough:
        return None
    why = (
        f"{enough} epochs instead of {training.epochs}, since an epoch has {steps} steps of "
        f"{training.batch_size * training.accumulate} {task.noun} and a training needs about {STEPS}; "
        f"set another number with --epochs"
    )
    return Fit(settings={"epochs": enough}, why=why)

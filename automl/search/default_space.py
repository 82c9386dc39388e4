"""Defaults of a search that depend on its data: the space, the backbone, the image size, the epochs."""

from dataclasses import dataclass
from math import ceil
from typing import Any

from automl.base.registry import resolve
from automl.config.settings import Settings
from automl.tasks import Task, task_of_data
from search.config import TASKS, TrialConfig
from search.spaces import SPACES

STEPS = 300  # minimum number of steps; shorter trainings may end at chance level


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

    The task that recognises the data chooses, or else the default one. With `is_text`, source files are texts
    of a language model instead of functions to search. `backbone` and `size` are kept if they are set.

    Raise InputError if an archive cannot be extracted, or a folder is not a dataset.
    """
    spec = task_of_data(data)
    if is_text and spec is not None and spec.as_text:
        spec = TASKS[spec.as_text]
    spec = spec or TASKS[TrialConfig.task]  # data that no task recognises
    if not spec.fit:
        return Fit(settings={"space": spec.space})
    chosen: Fit = resolve(spec.fit)(data, backbone=backbone, size=size)
    return chosen


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

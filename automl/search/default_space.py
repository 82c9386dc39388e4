"""Defaults of a search that depend on its data: the space, the backbone, the image size, the epochs."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from os import PathLike, fspath
from typing import Any

from automl.base.errors import InputError
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


def open_settings(values: Mapping[str, Any]) -> Settings:
    """Return the settings of a search with these fields. Without a space, the data choose it.

    What was chosen is printed. Raises InputError if there is neither a space nor data.
    """
    options = {name: value for name, value in values.items() if value is not None}
    data = options.get("data")
    if options.get("space", "") != "" or "train" in options:
        return Settings(**values)
    if not isinstance(data, str | PathLike):
        raise InputError(
            "--space, --data or --train is missing; give --data PHOTOS, --space digits, --train "
            "train.py:train, or --resume NAME to resume a search"
        )
    # These options say that a language model is wanted.
    is_text = str(options.get("backbone", "")).startswith("hf:") or bool(
        {"full", "max_cache", "context", "distil"} & options.keys()
    )
    default = fit(fspath(data), backbone=options.get("backbone"), size=options.get("size"), is_text=is_text)
    if default.why:
        print(f"chosen    {default.why}", file=sys.stderr)
    return Settings(**{**values, **default.settings})


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

"""Configuration of one trial: everything that determines what a training computes.

Frozen dataclasses that round-trip through JSON. The sections of each task are in its folder of
`automl.tasks`.

sections        Base classes of all tasks: data, model and training
classification  The training of classifiers
own_training    A training by the user's own code: a function, or a command
opened          Configuration of a user-defined task whose code has not been loaded
tasks           Declarations of the built-in tasks (TASKS) and the registered ones
trial_config    One trial: a task with its data, model and training
"""

from typing import Any

from search.config.sections import PUBLISHED, Data, Model, Optimizer, Schedule, Training
from search.config.tasks import TASKS, TaskSpec
from search.config.trial_config import TrialConfig

__all__ = [
    "PUBLISHED",
    "TASKS",
    "Data",
    "Model",
    "Optimizer",
    "Schedule",
    "TaskSpec",
    "Training",
    "TrialConfig",
]


def __getattr__(name: str) -> Any:
    """Return a section of a task's configuration by its name, such as `ImageData`, for spaces of the user."""
    for spec in TASKS.values():
        for kind in (spec.data, spec.model, spec.training):
            if kind.__name__ == name:
                return kind
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Configuration of one trial: everything that determines what a training computes.

Frozen dataclasses that round-trip through JSON. The sections of each task are in its folder of
`automl.tasks`.

sections      Data, model and training: base classes of all tasks, of classifiers, and of the user's own code
tasks         Declarations of tasks, built in or installed (TASKS), of registered and not loaded ones
trial_config  One trial: a task with its data, model and training
"""

from typing import Any

from automl.base.lazy import declarations
from search.config.sections import PUBLISHED, Data, Model, Optimizer, Schedule, Training
from search.config.tasks import TASKS, TaskSpec
from search.config.trial_config import TrialConfig

__all__ = [
    "PUBLISHED", "TASKS", "Data", "Model", "Optimizer", "Schedule", "TaskSpec", "Training", "TrialConfig",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Return a section of a task's configuration by its name, such as `ImageData`, for spaces of the user."""
    for _, spec in declarations():
        for kind in (spec.data, spec.model, spec.training):
            if kind.__name__ == name:
                return kind
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

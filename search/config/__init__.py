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

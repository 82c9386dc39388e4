"""Tasks: what can be learned. A new task is one file and one entry here."""

from collections.abc import Mapping

from attention import unknown
from automl.config.runtime import Runtime
from automl.tasks.base import Split, Task
from automl.tasks.image_classification import ImageClassification
from search.config import TrialConfig

TASKS: Mapping[str, type[Task]] = {"classification": ImageClassification}


def task_of(config: TrialConfig) -> type[Task]:
    """The kind of task that `config` names. Raises InputError for an unknown one."""
    if config.task not in TASKS:
        raise unknown("task", config.task, TASKS)
    return TASKS[config.task]


def open_task(config: TrialConfig, runtime: Runtime) -> Task:
    """The task that `config` names, with its data. Raises InputError for what cannot be opened."""
    return task_of(config)(config, runtime)


__all__ = ["TASKS", "Split", "Task", "open_task", "task_of"]

"""Find the task of a name, of data, or of a configuration, and open it with its data."""

import re
from collections.abc import Iterator
from pathlib import Path

from automl.base.errors import InputError
from automl.base.lazy import isolated, resolve
from automl.base.loading import load_object
from automl.config.runtime import Runtime
from automl.data.archive import enter_single_folder, extract_if_archive
from automl.data.csv_table import read_labels
from automl.data.files import list_folders
from automl.task.base import Task
from search.config import TASKS, TrialConfig
from search.config.tasks import TaskSpec, load_spec, register, registered_specs

SPLIT = re.compile(r"(train|val|test)\w*", re.I)  # names of folders


def register_task(name: str, task: str | type[Task]) -> str:
    """Make a task available by name: to configurations, `--data` and `--space` of this process.

    A package does that for every process by an entry point of the group `automl.tasks`. A configuration
    stores the reference of the task instead of the name, so other machines need no registration.

    Args:
        name: The name. It must not be that of a built-in or installed task.
        task: The class, or its reference `file.py:Class` or `package.module:Class`.

    Returns:
        The reference.

    Raises:
        InputError: The name is invalid or taken, or the class cannot be loaded or has no `spec`.

    Example:
        >>> import automl
        >>> mine = "automl.tasks.image_classification.task:ImageClassification"
        >>> automl.register_task("photos", mine) == automl.TrialConfig(task="photos").task == mine
        True
    """
    if name in TASKS or ":" in name or not name:
        raise InputError(
            f"a task must have a name without colons that no built-in or installed task has; got {name!r}"
        )
    reference = task if isinstance(task, str) else f"{task.__module__}:{task.__qualname__}"
    load_spec(reference)
    return register(name, reference)


def task_of_data(path: str) -> TaskSpec | None:
    """Return the declaration of the task that recognises the data at `path`, or None for images of classes.

    Registered tasks are asked first. Raises InputError if an archive cannot be extracted, or a folder is
    nearly in the layout of a task.
    """
    chosen = next(_recognising(path), None)
    if chosen is None or chosen.guesses:
        _check_layout(path)
    return chosen


def _recognising(path: str) -> Iterator[TaskSpec]:
    for name, spec in (*registered_specs(), *TASKS.items()):
        with isolated(name):
            if spec.detects(path):
                yield spec


def _check_layout(path: str) -> None:
    """Raise InputError if `path` is nearly data of a task: of pixels, objects, stereo pairs or sequences."""
    root = extract_if_archive(path)
    if not root.is_dir():
        return
    root = enter_single_folder(root)
    table = read_labels(root)
    if table is not None and "label" in table.columns:  # the classes of images
        return
    for folder in (root, *(below for name, below in list_folders(root).items() if SPLIT.fullmatch(name))):
        for reason in _find_reasons(folder):
            raise InputError(f"{folder} {reason}. If its folders are classes of images, add --space folder")


def _find_reasons(folder: Path) -> Iterator[str]:
    for name, spec in TASKS.items():
        with isolated(name):
            if spec.nearly:
                yield from resolve(spec.nearly)(folder)


def task_of(config: TrialConfig) -> type[Task]:
    """Return the class of a configuration's task, and load its code if it is user-defined.

    Raises InputError if the task is unknown.
    """
    loaded: object
    if not config.opens:
        raise InputError(
            f"a {config.task} has no data or model that automl can open: its own program must do that. "
            f"`automl status`, `report` and `confirm` work with it"
        )
    if config.task in TASKS:
        loaded = resolve(TASKS[config.task].task)
    else:
        loaded = load_object("task", "Class", config.task, TASKS)
    if not (isinstance(loaded, type) and issubclass(loaded, Task)):
        raise InputError(f"task {config.task!r} must be a subclass of automl.Task; got {loaded!r}")
    return loaded


def open_task(config: TrialConfig, runtime: Runtime) -> Task:
    """Return the task of a configuration with its data. Runs user-defined code.

    Args:
        config: The configuration.
        runtime: The device, precision and workers.

    Returns:
        The task.

    Raises:
        InputError: The code or the data cannot be loaded.
    """
    config = config.load()
    return task_of(config)(config, runtime)

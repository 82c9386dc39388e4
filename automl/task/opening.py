"""Find and open the task of a name, of data or of a configuration, and check that the data stay the same."""

import re
from collections import Counter
from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from automl.base.errors import InputError
from automl.base.lazy import isolated, resolve
from automl.base.loading import load_object
from automl.config.nouns import Question
from automl.config.runtime import Runtime
from automl.data import shared
from automl.data.archive import enter_single_folder, extract_if_archive
from automl.data.csv_table import read_labels
from automl.data.files import list_folders
from automl.data.manifest import MANIFEST_FILE, Manifest, compare_manifests
from automl.data.overview import Overview
from automl.storage.metadata import SEARCH_FILE
from automl.storage.storage import Storage
from automl.task.base import Task
from automl.task.task_data import SPLITS, Split
from search.config import TASKS, TrialConfig
from search.config.tasks import TaskSpec, find_spec, load_spec, register, registered_specs

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
    if config.task in TASKS and not TASKS[config.task].task:
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

    Raises InputError if the code or the data cannot be loaded.
    """
    config = config.load()
    return task_of(config)(config, runtime)


def describe_data(path: str, *, space: str | None = None, size: int = 128) -> Any:
    """Describe a dataset: its inputs by class and split, and problems.

    Args:
        path: The folder or archive: images by class or in COCO's layout, code, stereo pairs, or sequences.
        space: The space of a search, whose task reads the data. By default the data decide.
        size: The side of the images in pixels.

    Returns:
        An overview of that kind of data. Its `lines()` are what `automl data` prints.

    Raises:
        InputError: The data cannot be read, or the size is invalid.

    Example:
        >>> import automl
        >>> from pathlib import Path
        >>> from PIL import Image
        >>> for green, name in enumerate(("cat", "dog")):
        ...     Path("photos", name).mkdir(parents=True)
        ...     for red in range(20):
        ...         Image.new("RGB", (32, 32), (12 * red, 99 * green, 0)).save(f"photos/{name}/{red}.png")
        >>> overview = automl.describe_data("photos", size=32)
        >>> sorted(overview.counts)
        ['cat', 'dog']
    """
    spec = (task_of_data(path) or find_spec(TrialConfig.task)) if space is None else None
    config = None
    if spec is None or not spec.overview:
        config = Question(space=space or (spec.space if spec else ""), data=str(path)).open().baseline
        spec = find_spec(config.task)
    if not spec.overview:
        assert config is not None
        return _look_over_splits(config)
    overview = resolve(spec.overview)
    return overview(path, size=size) if "size" in signature(overview).parameters else overview(path)


def _look_over_splits(config: TrialConfig) -> Overview:
    task = open_task(config, Runtime(device=torch.device("cpu")))
    kinds = Counter((row[2] or task.noun, row[0]) for row in task.manifest(task.config).rows())
    names = dict.fromkeys(name for name, _ in kinds)
    counts: dict[str, dict[str, int]] = {
        name: {split: kinds[name, split] for split in SPLITS} for name in names
    }
    data, changes = task.describe_data(), task.describe_changes()
    notes = {"data": data, "": changes}
    return Overview(
        counts, how=task.describe_splits(), notes=notes, data=data, counts=counts, changes=changes
    )


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest of a search's data into its folder."""
    Storage(str(folder)).write(MANIFEST_FILE, manifest.to_bytes())


def restore_manifest(folder: Path, digest: str, config: TrialConfig) -> None:
    """Write the manifest of a search that was killed before it did so, if its data have the same `digest`."""
    if not (folder / MANIFEST_FILE).exists():
        manifest = task_of(config).manifest(config)
        if manifest.digest == digest:
            write_manifest(folder, manifest)


def read_manifest(location: Storage | Path) -> Manifest:
    """Return the manifest of a search. Raises InputError if it is missing or damaged."""
    folder = location if isinstance(location, Storage) else Storage(str(location))
    try:
        return Manifest.from_bytes(folder.read(MANIFEST_FILE))
    except (OSError, ValueError, pa.ArrowException) as error:
        raise InputError(
            f"{folder}/{MANIFEST_FILE}, the list of the search's data, is damaged or missing ({error}); "
            f"without it, changes cannot be detected"
        ) from error


def check_same_data(
    config: TrialConfig, location: Storage | Path, name: str, splits: tuple[Split, ...] = SPLITS
) -> None:
    """Raise InputError, with names, if a trial's data differ from those of the search `name`.

    `location` is the search's folder. `splits` are about to be read. If the search's storage has all of them,
    they cannot have changed. Files are hashed but not decoded.
    """
    task = task_of(config)
    if shared.is_shared(task.shared_name(config), splits):
        return
    if changes := compare_manifests(read_manifest(location), task.manifest(config)):
        raise InputError(
            f"the data have changed since search {name!r} was created, so scores would not be comparable: "
            f"{changes}. Restore the old data, or start a new search."
        )


def check_source(config: TrialConfig, checkpoint: Storage) -> None:
    """Check the data of the search that a checkpoint belongs to, if any."""
    search = find_search_of(checkpoint)
    if search is not None:
        check_same_data(config, search, search.address.partition("?")[0].rpartition("/")[2])


def find_search_of(checkpoint: Storage) -> Storage | None:
    """Return the folder of the search that a checkpoint `trials/NNNN` or `confirm/trials/NNNN` belongs to."""
    folder = checkpoint
    for _ in range(3):
        folder = folder.parent
        try:
            if folder.exists(SEARCH_FILE):
                return folder
        except OSError as error:
            raise InputError(f"{folder} cannot be reached ({error})") from error
    return None

"""The built-in tasks: the folders of the package `automl.tasks`. Nothing else lists them.

The folder `NAME_OF_TASK` declares the task `name-of-task` by `SPEC`, a `search.config.TaskSpec`, in its
`__init__`. Packages of others declare theirs by entry points of the group `automl.tasks`. Built-in tasks have
none, since a job that runs from a folder of sources has no metadata of installed packages.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import Any

GROUP = "automl.tasks"  # the package, and the group of entry points


@cache
def task_packages() -> Mapping[str, str]:
    """Return the package of each built-in task by the task's name. Import none of them."""
    spec = find_spec(GROUP)
    folders = spec.submodule_search_locations if spec is not None else None
    return {
        info.name.replace("_", "-"): f"{GROUP}.{info.name}" for info in iter_modules(folders) if info.ispkg
    }


def resolve(reference: str) -> Any:
    """Import the object that `package.module:name` refers to."""
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)


def contributions(field: str) -> Iterator[Any]:
    """Import and yield what built-in tasks contribute to a table: the objects that this field refers to."""
    for package in task_packages().values():
        if reference := getattr(import_module(package).SPEC, field):
            yield resolve(reference)

"""A user's classes and functions in the processes that user-defined code starts, as a `DataLoader` does.

A process that is spawned imports them by their module. It cannot find a module that `automl.base.loading` has
read from a file, or a function of a notebook that this process has received.
"""

import sys
from importlib import import_module
from multiprocessing.reduction import ForkingPickler
from operator import attrgetter
from types import FunctionType
from typing import Any

import cloudpickle

from automl.base import loading
from automl.base.live_objects import MAIN


def send_own_objects() -> None:
    """Make pickles for other processes name the file of a class or function of the user."""
    ForkingPickler.reducer_override = _reduce  # type: ignore[method-assign, assignment]


def _reduce(pickler: ForkingPickler, value: Any) -> Any:
    if not isinstance(value, type | FunctionType) or "<" in value.__qualname__:
        return NotImplemented
    module, name = value.__module__, value.__qualname__
    if module == MAIN and not hasattr(sys.modules[MAIN], name.partition(".")[0]):
        return cloudpickle.loads, (cloudpickle.dumps(value),)
    if module.startswith(loading.OWN):
        return _find, (sys.modules[module].__file__, None, [], name)
    if module.partition(".")[0] in loading.beside.imported:
        return _find, (None, module, loading.beside.folders, name)
    return NotImplemented


def _find(file: str | None, module: str, folders: list[str], name: str) -> Any:
    """Return the object `name` of a file, or of a module beside the files in `folders`."""
    if loading.beside.folders[: len(folders)] != folders:
        for folder in reversed(folders):
            loading.beside.look_in(folder)
    return attrgetter(name)(loading.load_file(file) if file else import_module(module))

"""Imports on first use: exports of a package, the built-in tasks, and packages that only one task needs."""

import ast
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from automl.base.errors import InputError
from automl.base.own_imports import find_origin


def lazily(package: str) -> Callable[[str], Any]:
    """Return the `__getattr__` (PEP 562) of `package`, which imports its exports on first use.

    The exports are the names that the package's file imports under `if TYPE_CHECKING:`, for type checkers. A
    module of the package must not have the name of an export. Importing it would replace the export.
    """

    def load(name: str) -> Any:
        modules = _typed_imports(str(sys.modules[package].__file__))
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return load


@cache
def _typed_imports(file: str) -> dict[str, str]:
    """Return the module of each name that a file imports under `if TYPE_CHECKING:`."""
    modules: dict[str, str] = {}
    for block in ast.parse(Path(file).read_text(encoding="utf-8")).body:
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
            for line in block.body:
                assert isinstance(line, ast.ImportFrom)
                modules |= {alias.name: str(line.module) for alias in line.names}
    return modules


EXTRAS = {  # Purpose of each extra, for messages.
    "code": "code search",
    "detection": "object detection",
    "hf": "a backbone hf:FOLDER",
    "mcp": "automl mcp",
    "segmentation": "a backbone smp:NAME",
    "text": "a vocabulary of sub-words",
}


def optional(module: str, extra: str) -> Any:
    """Return a proxy of `module` that imports it when an attribute is accessed.

    If a package is missing, the access raises `InputError` with the command that installs the extra.
    """
    return _Optional(module, extra)


class _Optional:
    def __init__(self, module: str, extra: str) -> None:
        self._module, self._extra = module, extra

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Tools that inspect modules access such attributes.
            raise AttributeError(name)
        try:
            return getattr(import_module(self._module), name)
        except ModuleNotFoundError as error:
            package = (error.name or self._module).partition(".")[0]
            if (other := find_origin(package)) is not None:
                raise InputError(
                    f"{EXTRAS[self._extra]} needs the package {package}, and Python finds {other} "
                    f"first, which has no {error.name}. Rename it if it is another module of that name; "
                    f'otherwise update the package: pip install --upgrade "attention-automl[{self._extra}]"'
                ) from error
            raise InputError(
                f"{EXTRAS[self._extra]} needs the package {package}, which is not installed. Run: "
                f'pip install "attention-automl[{self._extra}]"'
            ) from error


GROUP = "automl.tasks"  # the package, and the group of entry points


@cache
def task_packages() -> Mapping[str, str]:
    """Return the package of each built-in task by the task's name. Import none of them.

    The folder `NAME_OF_TASK` declares the task `name-of-task` by `SPEC`, a `search.config.TaskSpec`, in its
    `__init__`. Packages of others declare theirs by entry points. Built-in tasks have none, since a job that
    runs from a folder of sources has no metadata of installed packages.
    """
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

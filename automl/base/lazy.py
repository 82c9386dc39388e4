"""Imports on first use: exports of a package, declarations of tasks, packages that only one task needs."""

import ast
import sys
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from automl.base.errors import OWN_PACKAGES, InputError, describe_error
from automl.base.own_imports import find_origin

R = TypeVar("R")


class LazyTable(Mapping[str, R]):
    """Records by name, of which `later()` returns those that are not in `first` when they are needed."""

    def __init__(
        self, later: Callable[[], Mapping[str, R]], first: Mapping[str, R] = MappingProxyType({})
    ) -> None:
        self._later, self._first = later, first

    @cached_property
    def _records(self) -> Mapping[str, R]:
        return {**self._first, **self._later(), **self._first}  # in this order

    def __getitem__(self, name: str) -> R:
        return self._first[name] if name in self._first else self._records[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)


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


def later(module: str) -> Any:
    """Return a proxy of `module` that imports it when an attribute is accessed."""
    return _Later(module)


class _Later:
    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Tools that inspect modules access such attributes.
            raise AttributeError(name)
        return getattr(import_module(self._module), name)


if TYPE_CHECKING:
    import numpy as numpy
else:  # commands that only read need none of it
    numpy = later("numpy")

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


class _Optional(_Later):
    def __init__(self, module: str, extra: str) -> None:
        super().__init__(module)
        self._extra = extra

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
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
    `__init__`. Built-in tasks have no entry points, since a job that runs from a folder of sources has no
    metadata of installed packages.
    """
    spec = find_spec(GROUP)
    folders = spec.submodule_search_locations if spec is not None else None
    return {
        info.name.replace("_", "-"): f"{GROUP}.{info.name}" for info in iter_modules(folders) if info.ispkg
    }


@cache
def installed_tasks() -> Mapping[str, EntryPoint]:
    """Return the tasks of installed packages by name, without importing them. A name belongs to one task."""
    points: dict[str, EntryPoint] = {}
    for point in entry_points(group=GROUP):
        if point.name in task_packages() or ":" in point.name:
            _skip(point, "give it a name without colons that no built-in task has")
        elif point.name in points:
            _skip(
                point, f"{_distribution(points[point.name])} has a task of this name; uninstall one of them"
            )
        else:
            points[point.name] = point
    return points


def _distribution(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else point.value


@cache
def _skip(point: EntryPoint, reason: str) -> None:  # prints each message once
    print(f"skipped task {point.name!r} of {_distribution(point)}: {reason}", file=sys.stderr)


@cache
def declaration(task: str) -> Any:
    """Return the `search.config.TaskSpec` of a built-in or installed task.

    An entry point names a `TaskSpec`, a module that has one as `SPEC`, or a `Task` that has one as `spec`.
    Raises InputError if the package of an installed task cannot be imported.
    """
    if task in task_packages():
        return import_module(task_packages()[task]).SPEC
    point = installed_tasks()[task]
    try:
        value = point.load()
    except (Exception, SystemExit) as error:
        raise InputError(_broken(point.value, error)) from error
    spec = getattr(value, "SPEC", None) or getattr(value, "spec", value)
    if not getattr(spec, "metrics", ()):
        raise InputError(f"{point.value} must be or have an automl.TaskSpec with metrics; got {spec!r}")
    return spec if spec.task else replace(spec, task=point.value)


def _broken(reference: str, error: BaseException) -> str:
    return f"{reference} cannot be imported: {describe_error(error)}. Update or uninstall its package"


@contextmanager
def isolated(task: str) -> Iterator[None]:
    """Print an error of an installed task once instead of raising it: the others work without its package."""
    try:
        yield
    except Exception as error:
        if (point := installed_tasks().get(task)) is None:
            raise
        _skip(point, str(error) if isinstance(error, InputError) else describe_error(error))


def declarations() -> Iterator[tuple[str, Any]]:
    """Yield name and declaration of each task, the built-in ones first. Broken packages are skipped."""
    for task in (*task_packages(), *installed_tasks()):
        with isolated(task):
            yield task, declaration(task)


def resolve(reference: str) -> Any:
    """Import the object that `package.module:name` refers to. Raises InputError if a foreign one fails."""
    module, _, name = reference.partition(":")
    try:
        return getattr(import_module(module), name)
    except (Exception, SystemExit) as error:
        if module.partition(".")[0] in OWN_PACKAGES:
            raise
        raise InputError(_broken(reference, error)) from error


def contributions(field: str, read: Callable[[Any], Any] = lambda each: each) -> Iterator[Any]:
    """Import and yield what tasks contribute to a table: `read` of the objects that this field refers to."""
    for task, spec in declarations():
        with isolated(task):
            if reference := getattr(spec, field):
                yield read(resolve(reference))


def contributed(field: str) -> Mapping[str, Any]:
    """Return the records by name that this field refers to, in mappings or sequences. Built-in ones stay."""
    return dict(ChainMap(*contributions(field, _by_name)))


def _by_name(records: Any) -> dict[str, Any]:
    return {each.name: each for each in (records.values() if isinstance(records, Mapping) else records)}

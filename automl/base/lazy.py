"""Imports on first use: the exports of a package, and packages that only one task needs."""

import ast
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
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

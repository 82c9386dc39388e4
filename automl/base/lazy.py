"""Exports of a package that are loaded on first use."""

import ast
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any


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

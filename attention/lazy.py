"""Exports of a package that are loaded on first use."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` (PEP 562) of `package`, which imports its exports on first use.

    A module must not have the name of an export. Importing the module would replace the export.

    Args:
        package: Name of the package.
        modules: Module of each export, relative to the package.
    """

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{modules[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return load

"""Loads user-defined objects by name: `file.py:name` or `package.module:name`."""

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from attention import InputError, unknown

OWN = "own_"  # begins the names of modules that are loaded from a file


def load_object(what: str, kind: str, name: str, known: Iterable[str]) -> Any:
    """What is called `name`, where that is none of the `known` names of our own.

    what, kind: a space that is a function, a task that is a class, for messages.
    Raises InputError when there is none, or it cannot be imported.
    """
    module_name, colon, attribute = name.rpartition(":")
    if not colon:
        raise InputError(f"{unknown(what, name, known)} Or name your own as file.py:{kind}.")
    try:
        module = load_file(module_name) if module_name.endswith(".py") else load_module(module_name)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"{what} {name!r}: {module_name} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    found = getattr(module, attribute, None)
    if not callable(found):
        there = [key for key, value in vars(module).items() if callable(value) and key[0] != "_"]
        raise unknown(f"{kind} in {module_name}", attribute, there)
    return found


def absolute(name: str) -> str:
    """`file.py:name` with the whole path of the file, so that other processes find it."""
    file, colon, attribute = name.rpartition(":")
    return f"{Path(file).expanduser().resolve()}:{attribute}" if colon and file.endswith(".py") else name


def load_file(path: str) -> Any:
    """The module in a file, which is run once as long as it stays as it is."""
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        raise InputError(f"there is no file {path} to read it from")
    for name, module in list(sys.modules.items()):
        if getattr(module, "__file__", None) == str(file) and not name.startswith(OWN):
            return module  # whose classes would otherwise be there twice, and not be equal
    status = file.stat()
    return _run(file, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=32)
def _run(file: Path, changed: int, size: int) -> Any:
    spec = importlib.util.spec_from_file_location(f"{OWN}{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def load_module(name: str) -> Any:
    """A user's module, which may be in the current folder."""
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    return importlib.import_module(name)

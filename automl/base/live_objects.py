"""Functions of a notebook, a script or an interactive session.

A function of a script is `script.py:name`. One that is in no file is `__main__:name`: this process has it,
and sends it to its own workers. Nothing of it is read from a file.
"""

import inspect
import io
import marshal
import sys
from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import cloudpickle

from automl.base.errors import InputError

MAIN = "__main__"

_received: dict[str, tuple[str, Any]] = {}  # Hash and function by name, in a worker.


def name_of(function: Callable[..., Any]) -> str:
    """Return the name by which other processes load a function: `file.py:name`, or `__main__:name`.

    Raises `InputError` if the function is not at the top level of its file or notebook.
    """
    module = sys.modules.get(getattr(function, "__module__", ""))
    name = getattr(function, "__qualname__", "")
    if module is None or getattr(module, name, None) is not function:
        raise InputError(
            f"{name or function!r} must be a function at the top level of its file or notebook; move it there"
        )
    file = Path(getattr(module, "__file__", None) or "")
    if module.__name__ != MAIN and "." in module.__name__:  # its package may use relative imports
        return f"{module.__name__}:{name}"
    if file.suffix == ".py" and file.is_file():
        return f"{file.resolve()}:{name}"
    return f"{module.__name__}:{name}"


def is_live(name: str) -> bool:
    """Return True for the name of a function that is in no file."""
    return name.partition(":")[0] == MAIN


def find_live(name: str) -> Any:
    """Return the function of that name. None if this process has none."""
    if name in _received:
        return _received[name][1]
    return getattr(sys.modules[MAIN], name.partition(":")[2], None)


def hash_live(name: str) -> str:
    """Return a hash of the source of a function and of what it uses of the notebook. Empty without it.

    Without a source, as in `python -`, it is of the byte code.
    """
    if name in _received:
        return _received[name][0]
    if find_live(name) is None:
        return ""
    return sha256(b"".join(sources(name))).hexdigest()[:16]


def sources(name: str) -> list[bytes]:
    """Return the sources of a function and of what it uses of the notebook, or their byte code."""
    return [_source(each) for each in _used(find_live(name))]


def _used(function: Any) -> list[Any]:
    """Return a function, and the functions and classes of the notebook that it uses, each once."""
    used, waiting = list[Any](), [function]
    notebook = getattr(inspect.unwrap(function), "__globals__", {})  # a worker has no such notebook
    while waiting:
        each = inspect.unwrap(waiting.pop())
        if each not in used:
            used.append(each)
            values = (notebook.get(name) for name in _names(each))
            waiting += [v for v in values if callable(v) and getattr(v, "__module__", None) == MAIN]
    return used


def _names(value: Any) -> list[str]:
    """Return the names in the code of a function or of a class's methods, and in the functions in it."""
    codes = [each.__code__ for each in (value, *vars(value).values()) if hasattr(each, "__code__")]
    names: list[str] = []
    while codes:
        code = codes.pop()
        names += code.co_names
        codes += [constant for constant in code.co_consts if hasattr(constant, "co_names")]
    return sorted(set(names))


def _source(value: Any) -> bytes:
    try:
        return inspect.getsource(value).encode()
    except (OSError, TypeError):
        return marshal.dumps(value.__code__) if hasattr(value, "__code__") else repr(value).encode()


Cached = type(lru_cache(hash))


class _Pickler(cloudpickle.Pickler):
    """Pickler that also takes the functions with a cache of a notebook, with an empty cache."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Cached) and value.__module__ == MAIN:
            return _with_cache, (value.__wrapped__, value.cache_parameters())
        return super().reducer_override(value)


def _with_cache(function: Callable[..., Any], parameters: dict[str, Any]) -> Callable[..., Any]:
    result: Callable[..., Any] = lru_cache(**parameters)(function)
    return result


def pack(name: str) -> bytes:
    """Return the function, with the functions and values of the notebook that it uses.

    Raises `InputError` if this process has no such function, or it cannot be sent.
    """
    function = find_live(name)
    if function is None:
        raise InputError(f"this process has no function {name!r}; run the cell that defines it")
    buffer = io.BytesIO()
    try:
        _Pickler(buffer).dump((hash_live(name), function))
    except Exception as error:  # an object of any library
        raise InputError(f"{name!r} cannot be sent to other processes ({error})") from error
    return buffer.getvalue()


def unpack(name: str, content: bytes) -> None:
    """Make a function from `pack` available in this process."""
    _received[name] = cloudpickle.loads(content)

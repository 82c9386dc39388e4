"""Remember which files of user-defined code a person has run here by name, so that export runs them again.

A file counts as run with its path and its content: after a change it is another one. Modules are not
remembered, since their name does not tell their files.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from automl.storage.cache import cache_root

FOLDER = "trusted"


def remember(names: Iterable[str]) -> None:
    """Remember the files of user-defined code that a command was told to run. Write errors are ignored."""
    for mark in filter(None, map(_mark, names)):
        try:
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
        except OSError:
            return  # export then asks for --trust


def is_remembered(names: Iterable[str]) -> bool:
    """Return whether all of `names` are files that were run here as they are now."""
    marks = [_mark(name) for name in names]
    return bool(marks) and all(mark is not None and mark.exists() for mark in marks)


def _mark(name: str) -> Path | None:
    """Return the file that stands for `FILE.py:NAME`; None of a module, or of a file that cannot be read."""
    file = Path(name.rpartition(":")[0])
    if file.suffix != ".py":
        return None
    try:
        content = hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return None
    return cache_root() / FOLDER / hashlib.sha256(f"{file.resolve()}\n{content}".encode()).hexdigest()

"""Remember the files of user-defined code that were run on this machine, so that export may run them.

An entry consists of the file's path, its content and the name of the function. A changed file is not trusted.
Modules are not remembered, since their name does not identify their files.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from automl.storage.cache_folder import cache_root

FOLDER = "trusted"


def remember(names: Iterable[str]) -> None:
    """Remember the user-defined code in files that a command runs. Write errors are ignored."""
    for mark in filter(None, map(_mark, names)):
        try:
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
        except OSError:
            return  # export will require --trust


def is_remembered(names: Iterable[str]) -> bool:
    """Return True if all `names` are in files that were run on this machine and have not changed."""
    marks = [_mark(name) for name in names]
    return bool(marks) and all(mark is not None and mark.exists() for mark in marks)


def _mark(name: str) -> Path | None:
    """Return the entry of `FILE.py:NAME`. Return None for a module or an unreadable file."""
    path, _, attribute = name.rpartition(":")
    file = Path(path)
    if file.suffix != ".py":
        return None
    try:
        content = hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return None
    mark = "\0".join((str(file.resolve()), content, attribute))
    return cache_root() / FOLDER / hashlib.sha256(mark.encode("utf-8", "surrogateescape")).hexdigest()

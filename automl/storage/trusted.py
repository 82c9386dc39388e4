"""Remember which files of user-defined code a person has run here by name, so that export runs them again.

What counts is the path of a file, its content and the name in it: after a change, or with another of its
names, it was not run. Modules are not remembered, since their name does not tell their files.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from automl.storage.cache_folder import cache_root

FOLDER = "trusted"


def remember(names: Iterable[str]) -> None:
    """Remember the user-defined code in files that a command was told to run. Write errors are ignored."""
    for mark in filter(None, map(_mark, names)):
        try:
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
        except OSError:
            return  # export then asks for --trust


def is_remembered(names: Iterable[str]) -> bool:
    """Return whether all of `names` are in files and were run here as they are now."""
    marks = [_mark(name) for name in names]
    return bool(marks) and all(mark is not None and mark.exists() for mark in marks)


def _mark(name: str) -> Path | None:
    """Return the file that stands for `FILE.py:NAME`; None of a module, or of a file that cannot be read."""
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

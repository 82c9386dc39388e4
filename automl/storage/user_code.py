"""User-defined code that a command runs: name it, and require `--trust` where it is another user's.

What was named on this machine is remembered, so that later commands may run it: a file, the file of a module,
a command. An entry consists of the path of the file, its content and the name in it, or of the command and
its folder. A changed file is not trusted. Functions of the running notebook or script are the user's own.
"""

import hashlib
import importlib.util
import sys
from collections.abc import Iterable
from importlib.machinery import PathFinder
from pathlib import Path

from automl.base import live_objects
from automl.base.errors import InputError
from automl.base.escape import redact
from automl.storage.cache_folder import cache_root
from search.record import TrialRecord


def user_code(names: Iterable[str], records: Iterable[TrialRecord]) -> list[str]:
    """Return the names of the user-defined code of a search's settings and trials, which it runs again."""
    return [*names, *(name for record in records for name in record.config.user_code())]


def announce(what: str, names: Iterable[str]) -> None:
    """Print the user-defined code that `what` is about to run, on standard error."""
    if listed := _listed(names):
        print(f"{what} runs {listed}", file=sys.stderr)


def check_trusted(what: str, names: Iterable[str], *, trust: bool) -> None:
    """Raise InputError if `what` would run user-defined code without `trust`. Otherwise name the code.

    Code that was run on this machine needs no `trust`.
    """
    names = list(names)
    if names and not trust and not is_remembered(names):
        raise InputError(
            f"{what} would run {_listed(names)} with all your permissions. It was not named on this machine, "
            f"or has changed since. If you trust its author, add --trust (from Python trust=True)"
        )
    announce(what, names)


def trust_option(names: Iterable[str]) -> str:
    """Return ` --trust` if there is user-defined code that was not run on this machine, or an empty text."""
    names = list(names)
    return " --trust" if names and not is_remembered(names) else ""


def _listed(names: Iterable[str]) -> str:
    """Return each name once, quoted, since it may contain any character."""
    return ", ".join(redact(repr(name)) for name in dict.fromkeys(names))


TRUSTED = "trusted"  # the folder of entries in the cache
COMMAND = "the command in "


def remember(names: Iterable[str]) -> None:
    """Remember the user-defined code in files that a command runs. Write errors are ignored."""
    for mark in filter(None, map(_mark, names)):
        try:
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
        except OSError:
            return  # later commands will require --trust


def is_remembered(names: Iterable[str]) -> bool:
    """Return True if all `names` were named on this machine, and their files have not changed."""
    names = list(names)
    own = [name for name in names if live_objects.is_live(name) and live_objects.find_live(name) is not None]
    marks = [_mark(name) for name in names if name not in own]
    return bool(names) and all(mark is not None and mark.exists() for mark in marks)


def command_in(folder: str | None, command: str) -> str:
    """Return the name of a command, among those of user-defined code."""
    return f"{COMMAND}{folder}: {command}"


def _mark(name: str) -> Path | None:
    """Return the entry of a name. Return None if there is no such file. Runs no code."""
    parts = [name]
    if not name.startswith(COMMAND):
        path, _, attribute = name.rpartition(":")
        file = Path(path) if path.endswith(".py") else _file_of_module(path)
        if file is None:
            return None
        try:
            parts = [str(file.resolve()), hashlib.sha256(file.read_bytes()).hexdigest(), attribute]
        except OSError:
            return None
    mark = "\0".join(parts).encode("utf-8", "surrogateescape")
    return cache_root() / TRUSTED / hashlib.sha256(mark).hexdigest()


def _file_of_module(module: str) -> Path | None:
    """Return the file of a module, without importing it or a package that it is in."""
    # It may be in the current folder, as in `loading.load_module`.
    first, *rest = module.split(".")
    try:
        spec = importlib.util.find_spec(first) or PathFinder.find_spec(first, [str(Path.cwd())])
        for end in range(1, len(rest) + 1):
            if spec is None or spec.submodule_search_locations is None:
                return None
            spec = PathFinder.find_spec(".".join([first, *rest[:end]]), spec.submodule_search_locations)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec is not None and spec.origin else None

"""User-defined code that a command runs: name it, and require `--trust` where it is another user's.

Files that were run on this machine are remembered, so that later commands may run them. An entry consists of
the path of the file, its content and the name of the function. A changed file is not trusted. Modules are not
remembered, since their name does not identify their files.
"""

import hashlib
import sys
from collections.abc import Iterable
from pathlib import Path

from automl.base.errors import InputError
from automl.base.escape import redact
from automl.config.settings import Settings
from automl.storage.cache_folder import cache_root
from search.record import TrialRecord


def user_code(settings: Settings, records: Iterable[TrialRecord]) -> list[str]:
    """Return the names of the user-defined code that resuming a search may run."""
    return [*settings.user_code(), *(name for record in records for name in record.config.user_code())]


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
            f"{what} would run {_listed(names)} with all your permissions. If you trust its author, add "
            f"--trust (from Python trust=True)"
        )
    announce(what, names)


def trust_option(names: Iterable[str]) -> str:
    """Return ` --trust` if there is user-defined code that was not run on this machine, or an empty text."""
    names = list(names)
    return " --trust" if names and not is_remembered(names) else ""


def _listed(names: Iterable[str]) -> str:
    """Return each name once, quoted, since it may contain any character."""
    return ", ".join(redact(repr(name)) for name in dict.fromkeys(names))


TRUSTED = "trusted"  # the folder of remembered files in the cache


def remember(names: Iterable[str]) -> None:
    """Remember the user-defined code in files that a command runs. Write errors are ignored."""
    for mark in filter(None, map(_mark, names)):
        try:
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
        except OSError:
            return  # later commands will require --trust


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
    return cache_root() / TRUSTED / hashlib.sha256(mark.encode("utf-8", "surrogateescape")).hexdigest()

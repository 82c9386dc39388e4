"""Name the user-defined code that a command runs, and require `--trust` where it is another user's."""

import sys
from collections.abc import Iterable

from automl.base.errors import InputError
from automl.base.escape import redact
from automl.config.settings import Settings
from search.record import TrialRecord


def user_code(settings: Settings, records: Iterable[TrialRecord]) -> list[str]:
    """Return the names of the user-defined code that resuming a search may run."""
    return [*settings.user_code(), *(name for record in records for name in record.config.user_code())]


def announce(what: str, names: Iterable[str]) -> None:
    """Print the user-defined code that `what` is about to run, on standard error."""
    if listed := _listed(names):
        print(f"{what} runs {listed}", file=sys.stderr)


def check_trusted(what: str, names: Iterable[str], *, trust: bool) -> None:
    """Raise InputError if `what` would run user-defined code without `trust`. Otherwise name the code."""
    names = list(names)
    if names and not trust:
        raise InputError(
            f"{what} would run {_listed(names)} with all your permissions. If you trust its author, add "
            f"--trust (from Python trust=True)"
        )
    announce(what, names)


def trust_option(names: Iterable[str]) -> str:
    """Return ` --trust` if there is user-defined code, otherwise an empty text."""
    return " --trust" if any(True for _ in names) else ""


def _listed(names: Iterable[str]) -> str:
    """Return each name once, quoted, since it may contain any character."""
    return ", ".join(redact(repr(name)) for name in dict.fromkeys(names))

"""Names the user-defined code that a command runs, and refuses to run it unasked."""

import sys
from collections.abc import Iterable

from attention import InputError
from automl.config.settings import Settings
from search.record import TrialRecord


def user_code(settings: Settings, records: Iterable[TrialRecord]) -> list[str]:
    """Return the names of the user-defined code that going on with a search may run."""
    return [*settings.user_code(), *(name for record in records for name in record.config.user_code())]


def announce(what: str, names: Iterable[str]) -> None:
    """Print on standard error which user-defined code `what` is about to run, if any."""
    if listed := _listed(names):
        print(f"{what} runs {listed}", file=sys.stderr)


def check_trusted(what: str, names: Iterable[str], *, trust: bool) -> None:
    """Raise InputError where `what` would run user-defined code without `trust`; name the code otherwise."""
    names = list(names)
    if names and not trust:
        raise InputError(
            f"{what} would run {_listed(names)}, with all your rights. If you trust its author, add --trust "
            f"(from Python trust=True)"
        )
    announce(what, names)


def trust_option(names: Iterable[str]) -> str:
    """Return ` --trust` for the command that exports a user-defined model, and nothing for others."""
    return " --trust" if any(True for _ in names) else ""


def _listed(names: Iterable[str]) -> str:
    """Return each name once; quoted, since it may hold anything."""
    return ", ".join(repr(name) for name in dict.fromkeys(names))

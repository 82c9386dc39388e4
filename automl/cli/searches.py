"""List the searches of a storage."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from automl.base.errors import InputError
from automl.base.names import short_name
from automl.cli.status import Status, read_status
from automl.storage.folder import last_worked, reached
from automl.storage.storage import Storage

HEADING = ("name", "space", "state", "trials", "best", "verdict", "age", "size")
NAME, SPACE, LINE = 22, 7, 80  # maximum width of the columns of names and spaces, and of a line


@dataclass(frozen=True, kw_only=True)
class Listed:
    """Row of the list of searches.

    Attributes:
        state: As of `Status`, or `damaged`.
        ended: Number of trials that have ended.
        trials: Number of planned trials. None: only the time is limited.
        metric: Name of the first objective.
        best: Its value in the best trial.
        verdict: Outcome of the latest confirmation.
        age: Time since a process last wrote to the search [s].
        size: Size with checkpoints [bytes].
        problem: Error message of a damaged search.
    """

    name: str
    space: str = ""
    state: str = "damaged"
    ended: int = 0
    trials: int | None = None
    metric: str = ""
    best: float | None = None
    verdict: str | None = None
    age: float
    size: int
    problem: str | None = None


def list_searches(storage: str = "searches") -> list[Listed]:
    """List the searches of a storage, the last used first. A damaged one is listed with its problem.

    Args:
        storage: The folder of all searches, or its address.

    Returns:
        Name, state, trials, best score, verdict, age and size of each search.

    Raises:
        InputError: The storage cannot be read.

    Example:
        After the example of `run_search`:

        >>> [row.name for row in automl.list_searches() if row.name == "example"]
        ['example']
    """
    now, worked = time.time(), last_worked(storage)
    return [
        _listed(name, storage, max(0.0, now - worked[name]))
        for name in sorted(worked, key=lambda name: worked[name], reverse=True)
    ]


def _listed(name: str, storage: str, age: float) -> Listed:
    location = Storage(storage) / name
    try:
        with reached(location):
            size = location.total()
    except InputError as error:
        return Listed(name=name, age=age, size=0, problem=str(error))
    try:
        status: Status = read_status(name, storage)
    except (InputError, OSError) as error:
        return Listed(name=name, age=age, size=size, problem=str(error))
    except Exception as error:  # a defect of this project must not hide the other searches
        return Listed(name=name, age=age, size=size, problem=f"it cannot be read ({error!r})")
    return Listed(
        name=name,
        space=status.space,
        state=status.state,
        ended=status.ended,
        trials=status.trials,
        metric=status.metric,
        best=None if status.best is None else status.best[1],
        verdict=status.outcome,
        age=age,
        size=size,
    )


def searches_table(searches: Sequence[Listed]) -> list[str]:
    """Format the list for a terminal of 80 columns. A long name has a separate line."""
    if not searches:
        return ["no searches"]
    rows = [HEADING, *map(_row, searches)]
    names = [len(row[0]) for row in rows if len(row[0]) <= NAME]
    widths = [max(names), *(max(map(len, column)) for column in list(zip(*rows, strict=True))[1:])]
    gap = "  " if sum(widths) + 2 * (len(widths) - 1) <= LINE else " "
    lines = []
    for row, listed in zip(rows, [None, *searches], strict=True):
        name, *rest = row
        if len(name) > NAME:
            lines.append(name)
            name = ""
        cells = [cell.ljust(width) for cell, width in zip((name, *rest), widths, strict=True)]
        lines.append(gap.join(cells).rstrip())
        if listed is not None and listed.problem is not None:
            lines.append(f"  {listed.problem}")
    return lines


def _row(search: Listed) -> tuple[str, ...]:
    space = short_name(search.space) if search.space else ""  # unknown if `search.json` is damaged
    is_known = search.problem is None and search.state != "lost"
    planned = "" if search.trials is None else f"/{search.trials}"
    return (
        search.name,
        space if len(space) <= SPACE else f"{space[: SPACE - 1]}…",
        search.state,
        f"{search.ended}{planned}" if is_known else "",
        "" if search.best is None else f"{search.best:.4g}",
        search.verdict or "",
        _age(search.age),
        _size(search.size),
    )


def _age(seconds: float) -> str:
    """Format a time in its largest unit: `45s`, `12m`, `5h`, `30d`."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s"


def _size(size: float) -> str:
    """Format a number of bytes: `999B`, `12kB`, `340MB`, `1.2GB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.1f}{unit}" if unit == "GB" and size < 9.95 else f"{size:.0f}{unit}"
        size /= 1000
    return f"{size:.1f}TB"

"""Lists the searches of a storage."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from attention import InputError
from automl.cli.status import Status, read_status
from automl.config.names import short_name
from automl.storage.folder import last_worked, reached
from automl.storage.storage import Storage

HEADING = ("name", "space", "state", "trials", "best", "verdict", "age", "size")
NAME, SPACE, LINE = 22, 7, 80  # the most characters of a name in its column, of a space, of a line


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A search as the list has it.

    state, verdict: as `Status` has them, or `damaged`. ended, trials: trials that have, and planned, None for
    as many as there is time for. best: the first objective, `metric`, of the best trial.
    age: seconds since a process last wrote it. size: bytes, of checkpoints too. problem: what is damaged.
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
    """The searches in `storage`, the last used first.

    A damaged one is listed with its problem. Raises InputError when the storage cannot be read.
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
        found: Status = read_status(name, storage)
    except (InputError, OSError) as error:
        return Listed(name=name, age=age, size=size, problem=str(error))
    except Exception as error:  # a defect of ours, which must not hide the other searches
        return Listed(name=name, age=age, size=size, problem=f"it cannot be read ({error!r})")
    return Listed(
        name=name,
        space=found.space,
        state=found.state,
        ended=found.ended,
        trials=found.trials,
        metric=found.metric,
        best=None if found.best is None else found.best[1],
        verdict=found.said,
        age=age,
        size=size,
    )


def searches_table(searches: Sequence[Listed]) -> list[str]:
    """Lines for a terminal of 80 columns, with a heading. A long name has a separate line."""
    if not searches:
        return ["no searches"]
    rows = [HEADING, *map(_row, searches)]
    names = [len(row[0]) for row in rows if len(row[0]) <= NAME]
    widths = [max(names), *(max(map(len, column)) for column in list(zip(*rows, strict=True))[1:])]
    gap = "  " if sum(widths) + 2 * (len(widths) - 1) <= LINE else " "
    lines = []
    for row, one in zip(rows, [None, *searches], strict=True):
        name, *rest = row
        if len(name) > NAME:
            lines.append(name)
            name = ""
        cells = [cell.ljust(width) for cell, width in zip((name, *rest), widths, strict=True)]
        lines.append(gap.join(cells).rstrip())
        if one is not None and one.problem is not None:
            lines.append(f"  {one.problem}")
    return lines


def _row(one: Listed) -> tuple[str, ...]:
    space = short_name(one.space) if one.space else ""  # of a search whose file cannot be read
    known = one.problem is None and one.state != "lost"
    of = "" if one.trials is None else f"/{one.trials}"
    return (
        one.name,
        space if len(space) <= SPACE else f"{space[: SPACE - 1]}…",
        one.state,
        f"{one.ended}{of}" if known else "",
        "" if one.best is None else f"{one.best:.4g}",
        one.verdict or "",
        _age(one.age),
        _size(one.size),
    )


def _age(seconds: float) -> str:
    """In the largest unit of which it is one or more: `45s`, `12m`, `5h`, `30d`."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s"


def _size(size: float) -> str:
    """`999B`, `12kB`, `340MB`, `1.2GB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.1f}{unit}" if unit == "GB" and size < 9.95 else f"{size:.0f}{unit}"
        size /= 1000
    return f"{size:.1f}TB"

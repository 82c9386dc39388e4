"""`automl status`, `searches`, `sync` and `report`: commands for folders of searches."""

import sys
import webbrowser
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from automl.base.errors import InputError
from automl.base.escape import printable
from automl.base.options import WRITES, format_command
from automl.base.serialise import to_json
from automl.base.text import short_name
from automl.base.units import format_size, pluralize
from automl.cli.command import JSON_OPTION, STORAGE_OPTION, WRITTEN_STORAGE, option, print_json

if TYPE_CHECKING:
    from automl.search.status import Listed

HEADING = ("name", "space", "state", "trials", "best", "verdict", "age", "size")
NAME, SPACE, LINE = 22, 7, 80  # maximum width of the columns of names and spaces, and of a line


def status(
    search: Annotated[str | None, typer.Argument(help="Name of the search. Default: the latest.")] = None,
    storage: str = STORAGE_OPTION,
    as_json: bool = JSON_OPTION,
) -> None:
    """Show the state of a search.

    Works on any machine that can read its folder.
    """
    from automl.search.status import read_status

    state = read_status(search, storage)
    for line in state.lines():
        print(printable(line))
    if as_json:
        print_json(state.to_json())


def searches(storage: str = STORAGE_OPTION, as_json: bool = JSON_OPTION) -> None:
    """List the searches of a storage, the last used first."""
    from automl.search.status import list_searches

    listed = list_searches(storage)
    for line in searches_table(listed):
        print(printable(line))
    if as_json:
        print_json(to_json(listed))


def sync(
    search: Annotated[str | None, typer.Argument(help="Name of the search.")] = None,
    storage: str = STORAGE_OPTION,
) -> None:
    """Write the missing runs of a search to MLflow."""
    from automl.search.driver import run_sync

    if search is None:  # the latest one may not be meant
        raise InputError("the NAME of a search is missing; automl searches lists the names")
    print(f"search {search}: {pluralize(run_sync(search, storage), 'trials are in MLflow')}")


def report(
    search: str | None = option(None, "Name of the search.", shown="the latest"),
    out: str | None = option(None, "Folder of the page and its plots.", shown="the search's", effect=WRITES),
    show: bool = option(False, "Open the page in the browser.", None, "--open"),
    storage: str = WRITTEN_STORAGE,
) -> None:
    """Write a page about a search: its verdict, plots and trials."""
    from automl.report.run_report import run_report

    result = run_report(search, out=out, storage=storage)
    size = format_size(result.index.stat().st_size)
    print(f"report    {result.index} ({size}, {pluralize(len(result.plots), 'plots')})")
    if result.run_id is not None:
        print(f"MLflow    run {result.run_id}, artifacts in report/")
    if show and not webbrowser.open(result.index.resolve().as_uri()):
        print("no browser could be started; open the page yourself", file=sys.stderr)
    if not result.confirmed:
        print(f"next      {format_command('confirm --search', result.search, storage)}")
        print(f"{'':13} test the best trials against the baseline with new seeds")


def searches_table(searches: Sequence["Listed"]) -> list[str]:
    """Format the list for a terminal of 80 columns. A long name has a separate line."""
    if not searches:
        return ["no searches"]
    rows = [HEADING, *map(_row, searches)]
    names = [len(row[0]) for row in rows if len(row[0]) <= NAME]
    widths = [max(names), *(max(map(len, column)) for column in list(zip(*rows, strict=True))[1:])]
    gap = "  " if sum(widths) + 2 * (len(widths) - 1) <= LINE else " "
    lines = []
    for (name, *rest), listed in zip(rows, [None, *searches], strict=True):
        if len(name) > NAME:
            lines.append(name)
            name = ""
        cells = [cell.ljust(width) for cell, width in zip((name, *rest), widths, strict=True)]
        lines.append(gap.join(cells).rstrip())
        if listed is not None and listed.problem is not None:
            lines.append(f"  {listed.problem}")
    return lines


def _row(search: "Listed") -> tuple[str, ...]:
    space = short_name(search.space) if search.space else ""  # unknown if `search.json` is damaged
    is_known = search.problem is None and search.state != "lost"
    planned = "" if search.trials is None else f"/{search.trials}"
    return (
        search.name,
        space if len(space) <= SPACE else f"{space[: SPACE - 1]}…",
        search.state,
        f"{search.ended}{planned}" if is_known else "",
        search.shown.replace(" %", "%"),
        search.verdict or "",
        _age(search.age),
        format_size(float(f"{search.size:.2g}")),
    )


def _age(seconds: float) -> str:
    """Format a time in its largest unit: `45s`, `12m`, `5h`, `30d`."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s"

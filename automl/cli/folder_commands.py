"""`automl status`, `searches`, `remove`, `clean`, `sync` and `report`: commands for folders of searches."""

import sys
import webbrowser
from typing import Annotated

import typer

from automl.base.errors import InputError
from automl.base.escape import printable
from automl.base.options import WRITES, format_command
from automl.base.serialise import to_json
from automl.base.units import pluralize
from automl.cli.command import print_json
from automl.cli.options import JSON_OPTION, STORAGE_OPTION, WRITTEN_STORAGE, option


def status(
    search: Annotated[str | None, typer.Argument(help="Name of the search. Default: the latest.")] = None,
    storage: str = STORAGE_OPTION,
    as_json: bool = JSON_OPTION,
) -> None:
    """Show the state of a search.

    Works on any machine that can read its folder.
    """
    from automl.cli.status import read_status

    state = read_status(search, storage)
    for line in state.lines():
        print(printable(line))
    if as_json:
        print_json(state.to_json())


def searches(storage: str = STORAGE_OPTION, as_json: bool = JSON_OPTION) -> None:
    """List the searches of a storage, the last used first."""
    from automl.cli.status import list_searches, searches_table

    listed = list_searches(storage)
    for line in searches_table(listed):
        print(printable(line))
    if as_json:
        print_json(to_json(listed))


def remove(
    search: Annotated[str | None, typer.Argument(help="Name of the search.")] = None,
    storage: str = STORAGE_OPTION,
    yes: bool = option(False, "Delete without asking.", None, "--yes"),
) -> None:
    """Delete a search with all its files."""
    from automl.cli.remove import find_removable, run_remove

    name = _named(search)
    removable = find_removable(name, storage)
    if not (yes or _agrees(f"Delete {removable.description}?", "remove", name)):
        return
    run_remove(name, storage)
    print(f"removed   {removable.description}")
    print(f"not deleted: {removable.stays}")


def clean(
    older_than: str = option("30d", "Time without use from which on files are deleted."),
    yes: bool = option(False, "Delete without asking.", None, "--yes"),
) -> None:
    """Delete files of the cache and of Ray that are long unused."""
    from automl.cli.remove import find_unused, run_clean

    unused = find_unused(older_than)
    for files in unused:
        print(printable(str(files)))
    if not unused:
        print(f"nothing has been unused for {older_than}")
    elif yes or _agrees("Delete these files?", "clean", "these files"):
        run_clean(older_than)
        print(f"deleted   {sum(files.size for files in unused) / 1e6:,.1f} MB")


def _agrees(prompt: str, command: str, what: str) -> bool:
    """Ask, and return True for yes. Raise InputError without a terminal."""
    if not sys.stdin.isatty():
        raise InputError(
            f"automl {command} cannot ask for confirmation without a terminal; give --yes to delete {what}"
        )
    if typer.confirm(prompt, err=True):
        return True
    print("nothing was deleted")
    return False


def sync(
    search: Annotated[str | None, typer.Argument(help="Name of the search.")] = None,
    storage: str = STORAGE_OPTION,
) -> None:
    """Write the missing runs of a search to MLflow."""
    from automl.cli.sync import run_sync

    name = _named(search)
    print(f"search {name}: {pluralize(run_sync(name, storage), 'trials are in MLflow')}")


def _named(search: str | None) -> str:
    """Return the name of a search. Raise InputError if there is none, as the latest one may not be meant."""
    if search is None:
        raise InputError("the NAME of a search is missing; automl searches lists the names")
    return search


def report(
    search: str | None = option(None, "Name of the search.", shown="the latest"),
    out: str | None = option(None, "Folder of the page and its plots.", shown="the search's", effect=WRITES),
    show: bool = option(False, "Open the page in the browser.", None, "--open"),
    storage: str = WRITTEN_STORAGE,
) -> None:
    """Write a page about a search: its verdict, plots and trials."""
    from automl.report.run_report import run_report

    result = run_report(search, out=out, storage=storage)
    print(f"report    {result.index} ({result.index.stat().st_size / 1e6:.1f} MB, {len(result.plots)} plots)")
    if result.run_id is not None:
        print(f"MLflow    run {result.run_id}, artifacts in report/")
    if show and not webbrowser.open(result.index.resolve().as_uri()):
        print("no browser could be started; open the page yourself", file=sys.stderr)
    if not result.confirmed:
        print(f"next      {format_command('confirm --search', result.search, storage)}")
        print(f"{'':13} test the best trials against the baseline with new seeds")

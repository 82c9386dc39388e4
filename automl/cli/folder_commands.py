"""`automl status`, `searches`, `remove` and `sync`: commands on the folders of searches."""

import sys
from typing import Annotated

import typer

from attention import InputError
from automl.cli.json_output import print_json
from automl.cli.options import Json, StorageOption, describe
from automl.config.escape import printable
from search.serialise import to_json


def status(
    name: Annotated[str | None, typer.Argument(help="A search; the latest one if not given.")] = None,
    storage: StorageOption = "searches",
    as_json: Json = False,
) -> None:
    """Show the state of a search, from any terminal or machine that sees its folder."""
    from automl.cli.status import read_status

    found = read_status(name, storage)
    for line in found.lines():
        print(printable(line))
    if as_json:
        print_json(found.to_json())


def searches(storage: StorageOption = "searches", as_json: Json = False) -> None:
    """List the searches of a storage, the last used first."""
    from automl.cli.searches import list_searches, searches_table

    found = list_searches(storage)
    for line in searches_table(found):
        print(printable(line))
    if as_json:
        print_json(to_json(found))


def remove(
    name: Annotated[str, typer.Argument(help="A search.")],
    storage: StorageOption = "searches",
    yes: Annotated[bool, describe("Don't ask.", None, "--yes")] = False,
) -> None:
    """Delete a search: its study, its checkpoints, its confirmations and its report."""
    from automl.cli.remove import find_removable, run_remove

    found = find_removable(name, storage)
    if not yes:
        if not sys.stdin.isatty():
            raise InputError(
                f"automl remove asks for confirmation, and there is no terminal; give --yes to delete {name}"
            )
        if not typer.confirm(f"Delete {found.said}?", err=True):
            print("nothing was deleted")
            return
    found = run_remove(name, storage)
    print(f"removed   {found.said}")
    print(f"not deleted: {found.stays}")


def sync(
    name: Annotated[str, typer.Argument(help="A search.")],
    storage: StorageOption = "searches",
) -> None:
    """Write to MLflow what it lacks of a search, after it could not be reached."""
    from automl.cli.sync import run_sync

    print(f"search {name}: {run_sync(name, storage)} trials are in MLflow")

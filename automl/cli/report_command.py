"""`automl report`."""

import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from automl.cli.options import STORAGE_OPTION, option


def report(
    search: str | None = option(None, "Name of the search.", shown="the latest"),
    out: str | None = option(None, "Folder of the page and its plots.", shown="the search's"),
    show: bool = option(False, "Open the page in the browser.", None, "--open"),
    watch: bool = option(False, "Update the page while the search runs.", None, "--watch"),
    every: Annotated[float, typer.Option(help="Interval of --watch in seconds.", metavar="SECONDS")] = 15.0,
    storage: str = STORAGE_OPTION,
) -> None:
    """Write a page about a search: the verdict, plots, trials, and how to repeat it."""
    from automl.config.command_line import format_command
    from automl.report import run_report
    from automl.report.watch import check_every, watch_report

    check_every(every)

    def opened(page: Path) -> None:
        if show and not webbrowser.open(page.resolve().as_uri()):
            print("no browser could be started; open the page yourself", file=sys.stderr)

    if watch:

        def shown(page: Path) -> None:
            print(f"watching  {page}, updated every {every:g} s until the search ends", flush=True)
            opened(page)

        result = watch_report(search, out=out, storage=storage, every=every, shown=shown)
    else:
        result = run_report(search, out=out, storage=storage)
    print(f"report    {result.index} ({result.index.stat().st_size / 1e6:.1f} MB, {len(result.plots)} plots)")
    if result.run_id is not None:
        print(f"MLflow    run {result.run_id}, artifacts in report/")
    if not watch:
        opened(result.index)
    if not result.confirmed:
        print(f"next      {format_command('confirm --search', result.search, storage)}")
        print(f"{'':13} test the best trials against the baseline with new seeds")

"""`automl report`."""

import sys
import webbrowser

from automl.cli.options import STORAGE_OPTION, option


def report(
    search: str | None = option(None, "Name of the search.", shown="the latest"),
    out: str | None = option(None, "Folder of the page and its plots.", shown="the search's"),
    show: bool = option(False, "Open the page in the browser.", None, "--open"),
    storage: str = STORAGE_OPTION,
) -> None:
    """Write a page about a search: the verdict, plots, trials, and how to repeat it."""
    from automl.base.command_line import format_command
    from automl.report import run_report

    result = run_report(search, out=out, storage=storage)
    print(f"report    {result.index} ({result.index.stat().st_size / 1e6:.1f} MB, {len(result.plots)} plots)")
    if result.run_id is not None:
        print(f"MLflow    run {result.run_id}, artifacts in report/")
    if show and not webbrowser.open(result.index.resolve().as_uri()):
        print("no browser could be started; open the page yourself", file=sys.stderr)
    if not result.confirmed:
        print(f"next      {format_command('confirm --search', result.search, storage)}")
        print(f"{'':13} test the best trials against the baseline with new seeds")

"""`automl report --watch`: write the page of a running search again until the search ends."""

import time
from collections.abc import Callable
from pathlib import Path

from attention import InputError
from automl.report import ReportResult, prepare, run_report, write_page_alone
from automl.report.read import NoTrialsError, read_search
from automl.storage.folder import REPORT_FOLDER, find_search, is_running, resolve_search

EVERY, LONGEST = 15.0, 86400.0  # seconds


def check_every(every: float) -> None:
    """Raise InputError for seconds that `watch_report` does not wait."""
    if not every >= 1:
        raise InputError(f"--every must be 1 second or more; got {every:g}")
    if every > LONGEST:
        raise InputError(f"--every must be {LONGEST:g} seconds, a day, or less; got {every:g}")


def watch_report(
    search: str | None = None,
    *,
    out: str | None = None,
    storage: str = "searches",
    every: float = EVERY,
    shown: Callable[[Path], None] = lambda page: None,
) -> ReportResult:
    """Write the page every `every` seconds while the search runs, then the whole report.

    A browser that shows the page loads it again as often and stays where it was. `shown` is called with the
    page once it exists. Ctrl-C leaves the page as it is, and it is not loaded again.

    Raises InputError as `run_report` does, and if `every` is below one second or above a day.
    """
    check_every(every)
    name, storage = resolve_search(search, storage)
    first = True
    folder, metadata = find_search(name, storage)
    report_folder = Path(out).expanduser() if out is not None else folder / REPORT_FOLDER
    prepare(report_folder)
    try:
        while is_running(folder, metadata.location):
            try:
                page = write_page_alone(read_search(name, storage), report_folder, reload=every)
            except NoTrialsError:
                page = None
            if first and page is not None:
                shown(page)
                first = False
            time.sleep(every)
    except KeyboardInterrupt:
        if not first:
            write_page_alone(read_search(name, storage), report_folder)
        raise
    result = run_report(name, out=out, storage=storage)
    if first:
        shown(result.index)
    return result

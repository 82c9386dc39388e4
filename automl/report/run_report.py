"""Draw the figures of a report, and write its page and files."""

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from automl.base.atomic import locked, replacing, sweep
from automl.base.errors import InputError
from automl.report.attention import attention
from automl.report.audit import audit
from automl.report.costs import costs
from automl.report.curves import curves, training_curves
from automl.report.figure import Section, save
from automl.report.forest import forest
from automl.report.grid_table import FILES as GRID_FILES
from automl.report.grid_table import grid, write_grid
from automl.report.module_effects import parts
from automl.report.page import write_page
from automl.report.per_class import per_class
from automl.report.ranks import ranks
from automl.report.read import SearchData, read_search
from automl.report.site_effects import gates, placement, sensitivity
from automl.storage.folder import REPORT_FOLDER, NamedSearch

PAGE, PLOTS, CONTENTS = "index.html", "plots", "report.json"


@dataclass(frozen=True, kw_only=True)
class ReportResult:
    """A report.

    Attributes:
        search: The name of the search.
        folder: The folder of the report.
        index: The page.
        plots: The names of the plots that could be drawn, without maps, which are in the page alone.
        run_id: The ID of the search's run in MLflow, or None if MLflow did not take the report.
        confirmed: True if there is a verdict.

    Example:
        After the example of `run_report`:

        >>> "curves" in report.plots
        True
    """

    search: str
    folder: Path
    index: Path
    plots: Sequence[str]
    run_id: str | None
    confirmed: bool


def run_report(
    search: str | NamedSearch | None = None,
    *,
    out: str | Path | None = None,
    storage: str | None = None,
) -> ReportResult:
    """Write the report of a search as it stands: running, finished, confirmed or not.

    The report is logged to the search's run in MLflow, too. If that does not answer, standard error says so.

    Args:
        search: The name of the search, or its result. By default the latest search in `storage`.
        out: The folder for `index.html` and `plots/`. By default `report` in the folder of the search.
        storage: The storage of the search. By default that of the result, or `searches`.

    Returns:
        Where the report is.

    Raises:
        InputError: There is no such search, it has no trials yet, one of its files is damaged, or `out`
            cannot be written.

    Example:
        >>> import automl
        >>> report = automl.run_report("example", out="pages")
        >>> str(report.index)
        'pages/index.html'
    """
    loaded = read_search(search, storage)
    folder = Path(out).expanduser() if out is not None else loaded.folder / REPORT_FOLDER
    _prepare(folder)  # an error before a minute of drawing, not after it
    loaded = replace(loaded, links=_links(loaded))
    with tempfile.TemporaryDirectory() as temporary:
        drawn_folder = Path(temporary)
        names = _make(loaded, drawn_folder)
        _move(drawn_folder, folder, names)
    files = _files(names)
    if loaded.metadata.settings.is_grid:
        with _writing(folder):
            write_grid(loaded, folder)
        files += GRID_FILES
    if out is None:
        _send(loaded, folder, files)
    run_id = _track(loaded, folder, files)
    return ReportResult(
        search=loaded.metadata.name,
        folder=folder,
        index=folder / PAGE,
        plots=names,
        run_id=run_id,
        confirmed=bool(loaded.verdicts),
    )


def _prepare(folder: Path) -> None:
    """Make the folder of a report. Raises InputError where it cannot be written or holds another page."""
    if (folder / PAGE).exists() and not (folder / CONTENTS).exists():
        raise InputError(
            f"--out {folder} holds an {PAGE} that automl report did not write; name a new folder"
        )
    with _writing(folder):
        (folder / PLOTS).mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()


def sections(search: SearchData) -> list[Section]:
    """Return the sections with plots, in the order of the page. Commands have none beside the verdict."""
    if not search.metadata.settings.has_space:
        return []
    return [
        Section(
            id="learned",
            title="What the search learned",
            lead="Which type, and where, among the trials of the search. These are observations on the "
            "validation split, not proofs.",
            plots=[
                placement(search),
                parts(search),
                *sensitivity(search),
                gates(search),
                costs(search),
            ],
            dense=True,
            of_trials=True,
        ),
        *attention(search),
        *grid(search),
        *per_class(search),
        *ranks(search),
        Section(
            id="went",
            title="How the search went",
            lead="Weak trials are pruned at rungs, if there are any; the audit shows whether early scores "
            "predict final ones.",
            plots=[curves(search), audit(search), training_curves(search)],
            of_trials=True,
        ),
    ]


def _make(search: SearchData, folder: Path) -> list[str]:
    """Write the whole report into an empty folder, and return the names of its plots."""
    (folder / PLOTS).mkdir()
    top = forest(search.verdicts[-1]) if search.verdicts else None
    parts = sections(search)
    plots = [*([top] if top else []), *(plot for part in parts for plot in part.plots)]
    drawn = {plot.name: plot.figure for plot in plots if plot.figure and plot.figure.charts}
    for name, figure in drawn.items():
        save(figure, folder / PLOTS, name)
    (folder / PAGE).write_text(write_page(search, top, parts), encoding="utf-8")
    contents = {"format": 1, "search": search.metadata.name, "made": search.read_at, "plots": list(drawn)}
    (folder / CONTENTS).write_text(json.dumps(contents, indent=2))
    return list(drawn)


def _files(names: Sequence[str]) -> list[str]:
    """Return the files of a report with these plots, the page last."""
    return [*(f"{PLOTS}/{name}.{kind}" for name in names for kind in ("svg", "png")), CONTENTS, PAGE]


def _move(source: Path, folder: Path, names: Sequence[str]) -> None:
    """Put the finished files where they belong, each at once; other files there are left alone."""
    with _writing(folder), locked(folder / PAGE):  # another report may be writing the folder
        for name in (CONTENTS, PAGE):
            sweep(folder, name)  # what killed reports left half written
        sweep(folder / PLOTS)
        old = _earlier(folder)
        for name in _files(names):
            with replacing(folder / name) as new:
                shutil.copyfile(source / name, new)
        for name in set(_files(old)) - set(_files(names)):
            (folder / name).unlink(missing_ok=True)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(
            f"--out {folder} cannot be written ({error.strerror or error}); name a folder that can"
        ) from error


def _earlier(folder: Path) -> list[str]:
    """Return the plots of the earlier report, so that those which the new one lacks are deleted."""
    try:
        value = json.loads((folder / CONTENTS).read_text())
        names = [str(name) for name in value["plots"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [name for name in names if name == Path(name).name]


def _send(search: SearchData, folder: Path, files: Sequence[str]) -> None:
    """Put the report beside its search, where that is kept in an object store."""
    location = search.metadata.location / REPORT_FOLDER
    if location.local is not None:
        return
    try:
        for name in files:
            location.send(folder / name, name)
    except OSError as error:
        print(f"warning: the report is not in {location}: {error}", file=sys.stderr)


def _links(search: SearchData) -> dict[int, str]:
    """Return the addresses of the trials' runs, or none if MLflow does not answer."""
    from automl.tracking.runs import trial_links  # takes seconds to import

    try:
        return trial_links(search.metadata)
    except InputError:
        return {}


def _track(search: SearchData, folder: Path, files: Sequence[str]) -> str | None:
    """Log the report to MLflow; the report is whole without it."""
    from automl.tracking.runs import log_report  # takes seconds to import

    try:
        return log_report(search.metadata, folder, files)
    except InputError as error:
        print(f"warning: the report is not in MLflow: {error}", file=sys.stderr)
        return None

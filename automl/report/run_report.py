"""Draw the figures of a report, and write its page and files.

The page is one HTML file that contains everything it shows and makes no network requests.
"""

import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from automl.base.atomic import locked, replacing, sweep
from automl.base.errors import InputError
from automl.base.escape import printable, shell
from automl.base.options import format_command
from automl.base.units import format_count, format_duration, pluralize
from automl.report.attention import attention
from automl.report.curves import costs, curves, curves_over_time
from automl.report.figure import Cell, Plot, Section, Table, save, scripts, stylesheet
from automl.report.forest import forest, network
from automl.report.grid_table import FILES as GRID_FILES
from automl.report.grid_table import grid, write_grid
from automl.report.listing import failures, listing, repeat
from automl.report.module_effects import parts
from automl.report.per_class import per_class
from automl.report.read import SearchData, read_search
from automl.storage.folder import REPORT_FOLDER, NamedSearch
from search.record import NOT_NEEDED, State
from search.study import STUDY_FILE

PAGE, PLOTS, CONTENTS = "index.html", "plots", "report.json"
FEW_EPOCHS = 3  # below which a headline says how few they were
FEW_TRIALS = 10  # finished ones, below which plots of many trials are folded
MARKS = {"better": "▲", "worse": "▼", "equivalent": "≈", "undecided": "?", "cannot tell": "?"}
CONDITIONS = (State.COMPLETE, State.PRUNED, NOT_NEEDED, State.INFEASIBLE, State.ERROR, State.RUNNING)
STATES = {state: "errors" if state == State.ERROR else str(state) for state in CONDITIONS}  # their words


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
    search: str | NamedSearch | None = None, *, out: str | Path | None = None, storage: str | None = None
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
    if loaded.metadata.settings.plan.is_grid:
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
    if not search.metadata.has_trials:
        return []
    learning = Section(
        id="learning",
        title="How the finalist and the baseline learned",
        lead="Of the confirmation, on the validation split.",
        plots=[plot for _ in search.verdicts[-1:] if (plot := curves_over_time(search)).figure],
    )
    return [
        *([learning] if learning.plots else []),
        Section(
            id="learned",
            title="What the search learned",
            lead="Which type, and where, among the trials of the search. These are observations on the "
            "validation split, not proofs.",
            plots=[parts(search), costs(search)],
            dense=True,
            of_trials=True,
        ),
        *attention(search),
        *grid(search),
        *per_class(search),
        Section(
            id="went",
            title="How the search went",
            lead="Weak trials are pruned at rungs, if there are any.",
            plots=[curves(search)],
            of_trials=True,
        ),
    ]


def _make(search: SearchData, folder: Path) -> list[str]:
    """Write the whole report into an empty folder, and return the names of its plots."""
    (folder / PLOTS).mkdir()
    top = forest(search.verdicts[-1], search.plan.metric) if search.verdicts else None
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
        return trial_links(search.metadata.identity)
    except InputError:
        return {}


def _track(search: SearchData, folder: Path, files: Sequence[str]) -> str | None:
    """Log the report to MLflow; the report is whole without it."""
    from automl.tracking.runs import log_report  # takes seconds to import

    try:
        return log_report(search.metadata.identity, search.search, search.storage, folder, files)
    except InputError as error:
        print(f"warning: the report is not in MLflow: {error}", file=sys.stderr)
        return None


def write_page(search: SearchData, forest: Plot | None, sections: Sequence[Section]) -> str:
    """Return the page as a string."""
    environment = Environment(
        loader=PackageLoader("automl.report", ""),
        autoescape=True,
        finalize=lambda value: printable(value, keep="\n\t") if type(value) is str else value,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.filters["shown"] = shown
    settings = search.metadata.settings
    counts = Counter(trial.condition for trial in search.trials)
    plots = [*([forest] if forest else []), *(plot for part in sections for plot in part.plots)]
    data = {name: rows for plot in plots if plot.figure for name, rows in plot.figure.data.items()}
    return environment.get_template("page.html").render(
        search=search,
        settings=settings,
        referee=not search.metadata.has_trials,
        verdict=search.verdicts[-1] if search.verdicts else None,
        marks=MARKS,
        few_epochs=FEW_EPOCHS,
        state_counts=[f"{counts[state]} {word}" for state, word in STATES.items() if counts[state]],
        training_time=format_duration(
            sum(m.get("seconds", 0.0) for trial in search.trials for m in trial.history)
        ),
        read_at=time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(search.read_at)).strip(),
        forest=forest,
        network=network(search),
        sections=sections,
        too_few=len(search.done) < FEW_TRIALS,
        failures=failures(search),
        listing=listing(search),
        repeat=repeat(search),
        dashboard=shell(["optuna-dashboard", str(search.folder / STUDY_FILE)]),
        styles=Markup(stylesheet()),
        scripts=Markup(scripts(data)),
        attributes=_attributes,
        pluralize=pluralize,
        # The path is relative to the folder where the report is made.
        command=partial(format_command, name=search.metadata.name, storage=search.metadata.storage),
    )


def shown(cell: Cell) -> str:
    """Return a cell of a table as text."""
    if cell is None:
        return ""
    if isinstance(cell, str):
        return cell
    if abs(cell) >= 1e5:
        return format_count(cell)
    return str(cell) if isinstance(cell, int) else f"{cell:.4g}"


def _attributes(cell: Cell, table: Table, column: int) -> Markup:
    if not table.numeric[column]:
        return Markup(' class="w"' if isinstance(cell, str) and len(cell) > 24 else "")
    exact = not isinstance(cell, int | float) or shown(cell) == f"{cell:g}"
    return Markup(' class="n"' if exact else f' class="n" data-v="{cell:.9g}"')

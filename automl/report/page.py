"""The page: one HTML file that contains everything it shows and makes no network requests."""

import time
from collections import Counter
from collections.abc import Sequence
from functools import partial

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from automl.base.escape import printable, shell
from automl.base.options import format_command
from automl.base.units import format_count, format_duration, pluralize
from automl.report.figure import Cell, Plot, Section, Table, scripts, stylesheet
from automl.report.listing import failures, listing, repeat
from automl.report.network import network
from automl.report.read import SearchData
from search.record import NOT_NEEDED, State
from search.study import STUDY_FILE

FEW_EPOCHS = 3  # below which a headline says how few they were
FEW_TRIALS = 10  # finished ones, below which plots of many trials are folded
MARKS = {"better": "▲", "worse": "▼", "equivalent": "≈", "undecided": "?", "cannot tell": "?"}
STATES = {
    State.COMPLETE: "complete",
    State.PRUNED: "pruned",
    NOT_NEEDED: NOT_NEEDED,
    State.INFEASIBLE: "infeasible",
    State.ERROR: "errors",
    State.RUNNING: "running",
}


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
        command=partial(format_command, name=search.metadata.name, storage=settings.storage),
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

"""A grid as a table: one row for each cell, with the mean and the standard deviation over its seeds.

Each metric of the task's published tables has two values: at the last epoch, and the best over the epochs,
which is the maximum, or the minimum of an error. A cell without a score has a word in its place.
"""

import csv
import io
import math
import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from automl.base.atomic import replacing
from automl.base.escape import markdown
from automl.report.figure import Cell, Plot, Section, Table
from automl.report.read import SearchData
from search.config.tasks import find_spec
from search.metric import Metric
from search.record import State, TrialRecord
from search.space import GRID
from search.study import CELLS, read_attribute

FILES = ("grid.csv", "grid.md")
TRAINED, LAST = "trained", "last"

# Facts of a model, with what they are multiplied by.
COSTS = {
    "params": ("parameters", 1.0),
    "memory": ("memory, MB", 1e-6),
    "time_ratio": ("time of an epoch, times the baseline's", 1.0),
}
TEST = "test_"  # the prefix of metrics of the test split, which are known after the last epoch alone
NONE = "-"  # of a parameter that a cell does not have, and of a deviation of one run


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Scores of a cell's runs in one metric, in the unit of the report.

    Attributes:
        last: The scores after the last epoch.
        best: The best scores over the epochs.
    """

    metric: Metric
    last: Sequence[float]
    best: Sequence[float]


@dataclass(frozen=True, kw_only=True)
class GridCell:
    """A cell of a grid with its results.

    Attributes:
        label: The label of the cell in the scheduler.
        params: The choices of the cell.
        outcome: `trained`, or the reason of missing scores.
        records: The runs of the cell.
        scores: The scores of the completed runs, by metric.
    """

    label: str
    params: Mapping[str, Any]
    outcome: str
    records: Sequence[TrialRecord]
    scores: Mapping[str, Scores]

    @property
    def runs(self) -> int:
        """Number of completed runs."""
        return len(next(iter(self.scores.values())).last)

    def mean_and_deviation(self, metric: str, kind: str) -> list[Cell]:
        """Return mean and deviation of the last epoch, or of the best one, or the reason of their absence."""
        scores = self.scores.get(metric)
        values = [] if scores is None else scores.last if kind == LAST else scores.best
        return [statistics.fmean(values), deviation(values)] if values else [self.outcome, None]


def outcome(record: TrialRecord) -> str:
    """Return how a run ended, in one or two words: `trained`, `diverged`, `over a limit (memory)`."""
    reason = record.reason or ""
    if record.state is State.COMPLETE:
        return TRAINED
    if record.state is State.RUNNING:
        return "not finished"
    if "out of memory" in reason or "low on memory" in reason:
        return "did not fit in memory"
    if limits := re.findall(r"(\w+) \S+(?: ms)? exceeds the limit", reason):
        return f"over a limit ({', '.join(limits)})"
    if re.search(r"\bbecame -?(nan|inf)", reason):
        return "diverged"
    return "too slow for the epochs" if reason.startswith("too slow") else str(record.state)


def read_grid(search: SearchData) -> list[GridCell]:
    """Return the cells of a grid in its order, those without a run among them."""
    params: dict[str, dict[str, Any]] = read_attribute(search.folder, search.metadata.name, CELLS) or {}
    runs: dict[str, list[TrialRecord]] = {label: [] for label in params}
    for trial in search.trials:
        label = trial.variant
        params.setdefault(label, trial.params)
        runs.setdefault(label, []).append(trial)
    # Of runs with the same seed, the last one counts, as the others were started again.
    latest = {label: {trial.config.seed: trial for trial in trials} for label, trials in runs.items()}
    return [_cell(search, label, params[label], list(of.values())) for label, of in latest.items()]


def _cell(
    search: SearchData, label: str, params: Mapping[str, Any], trials: Sequence[TrialRecord]
) -> GridCell:
    done = [trial for trial in trials if trial in search.done]
    counts = Counter(outcome(trial) for trial in trials)
    words = counts if len(counts) == 1 else [f"{count} {word}" for word, count in counts.items()]
    return GridCell(
        label=label,
        params=params,
        outcome=", ".join(words) or "not started",
        records=list(trials),
        scores={metric.name: _scores(metric, done) for metric in metrics_of(search)},
    )


def metrics_of(search: SearchData) -> list[Metric]:
    """Return the metric that the search ranks by, and the others of published tables that were measured."""
    known = {search.plan.metric.name: search.plan.metric}
    for task in sorted({trial.config.task for trial in search.trials}):
        named = {metric.name: metric for metric in find_spec(task).tabled}
        known = {**named, **known} if search.plan.metric.name in named else {**known, **named}
    known |= {f"{TEST}{name}": replace(metric, name=f"{TEST}{name}") for name, metric in known.items()}
    measured = {name for trial in search.trials for epoch in trial.history for name in epoch}
    return [m for name, m in known.items() if name in measured or name == search.plan.metric.name]


def _scores(metric: Metric, records: Sequence[TrialRecord]) -> Scores:
    pick = max if metric.maximize else min
    last, best = [], []
    for record in records:
        values = [
            epoch[metric.name] for epoch in record.history if math.isfinite(epoch.get(metric.name, math.nan))
        ]
        if values:
            last.append(metric.scale * values[-1])
            best.append(metric.scale * pick(values))
    return Scores(metric=metric, last=last, best=best)


def deviation(values: Sequence[float]) -> float | None:
    """Return the standard deviation of a sample; None for fewer than two."""
    return statistics.stdev(values) if len(values) > 1 else None


def heading(name: str) -> str:
    """Return the name of a hyperparameter as the heading of its column."""
    return name.replace("_", " ")


def _text(choice: object) -> str:
    if isinstance(choice, bool):
        return "yes" if choice else "no"
    return f"{choice:.4g}" if isinstance(choice, float) else str(choice)


def grid_table(search: SearchData, cells: Sequence[GridCell] | None = None) -> Table:
    """Return the table of a grid: choices, runs, outcome, and of each metric means and deviations."""
    cells = read_grid(search) if cells is None else cells
    names = list(dict.fromkeys(name for cell in cells for name in cell.params))
    costs = [cost for cost in COSTS if any(cost in r.profile for cell in cells for r in cell.records)]
    metrics = metrics_of(search)
    columns = [*(map(heading, names)), "runs", "result"]
    for metric in metrics:
        for which in kinds_of(metric.name, maximize=metric.maximize):
            columns += [f"{metric.label} {which}", f"{metric.label} {which} sd"]
    columns += [COSTS[cost][0] for cost in costs]
    rows: list[list[Cell]] = []
    for cell in cells:
        row: list[Cell] = [_text(cell.params[name]) if name in cell.params else NONE for name in names]
        row += [cell.runs, cell.outcome]
        for metric in metrics:
            for which in kinds_of(metric.name, maximize=metric.maximize):
                row += cell.mean_and_deviation(metric.name, which)
        for cost in costs:
            facts = [COSTS[cost][1] * r.profile[cost] for r in cell.records if cost in r.profile]
            row.append(statistics.fmean(facts) if facts else None)
        rows.append(row)
    return Table(columns=columns, rows=rows)


def kinds_of(metric: str, *, maximize: bool) -> list[str]:
    """Return the columns of a metric. The test split has only the score of the last epoch."""
    return [LAST] if metric.startswith(TEST) else [LAST, "max" if maximize else "min"]


def grid(search: SearchData) -> list[Section]:
    """Return the section of a search whose sampler was `grid`, none for other searches."""
    if search.metadata.settings.plan.sampler != GRID or not any(trial.variant for trial in search.trials):
        return []
    cells = read_grid(search)
    trained = sum(cell.outcome == TRAINED for cell in cells)
    others = [f"{cell.label}: {cell.outcome}" for cell in cells if cell.outcome != TRAINED]
    plot = Plot(
        name="grid",
        title=f"{search.plan.metric.label} of each cell",
        figure=None,
        says=f"{trained} of {len(cells)} cells are trained" + (f"; {'; '.join(others)}." if others else "."),
        note="On the validation split. The last epoch, and the best of all epochs; sd is the standard "
        "deviation over seeds.",
        table=grid_table(search, cells),
    )
    return [Section(id="grid", title="The grid", lead="Every cell of the grid.", plots=[plot])]


def shown(cell: Cell) -> str:
    """Return a cell of a table as text."""
    if cell is None:
        return NONE
    if not isinstance(cell, float):
        return str(cell)
    return f"{cell:,.0f}" if abs(cell) >= 10_000 else f"{cell:.4g}"


def merged(table: Table) -> Table:
    """Return the table with each mean and its deviation in one column, as `85.1 ± 0.4`."""
    kept = [i for i, name in enumerate(table.columns) if not name.endswith(" sd")]
    rows = []
    for row in table.rows:
        texts = []
        for i in kept:
            text = shown(row[i])
            has_deviation = i + 1 < len(row) and table.columns[i + 1] == f"{table.columns[i]} sd"
            if has_deviation and row[i + 1] is not None:
                text += f" ± {shown(row[i + 1])}"
            texts.append(text)
        rows.append(texts)
    return Table(columns=[table.columns[i] for i in kept], rows=rows)


def text_lines(table: Table) -> list[str]:
    """Return a table as lines for a terminal, its columns aligned."""
    rows = [[str(name) for name in table.columns], *([shown(cell) for cell in row] for row in table.rows)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(table.columns))]
    return [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def markdown_lines(table: Table) -> list[str]:
    """Return a table in Markdown."""
    rows = [[str(name) for name in table.columns], *([shown(cell) for cell in row] for row in table.rows)]
    texts = ["| " + " | ".join(map(markdown, row)) + " |" for row in rows]
    return [texts[0], "|" + " - |" * len(table.columns), *texts[1:]]


def csv_text(table: Table, scale: str = "") -> str:
    """Return a table as CSV; what has no value is empty. The scale of a study is a column."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*table.columns, *(["scale"] if scale else [])])
    writer.writerows([*row, *([scale] if scale else [])] for row in table.rows)
    return out.getvalue()


def write_grid(search: SearchData, folder: Path) -> Table:
    """Write the table of a grid as `grid.csv` and `grid.md` into a folder, and return it."""
    table = grid_table(search)
    scale = search.metadata.scale
    lines = [*([markdown(scale), ""] if scale else []), *markdown_lines(merged(table))]
    texts = (csv_text(table, scale), "\n".join(lines) + "\n")
    write_texts(folder, dict(zip(FILES, texts, strict=True)))
    return table


def write_texts(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write files with these names and texts into a folder, and return their paths."""
    for name, text in texts.items():
        with replacing(folder / name) as new:
            new.write_text(text, encoding="utf-8")
    return [folder / name for name in texts]

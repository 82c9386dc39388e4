"""Tables with published figures and the results of a grid, and the line that says how the source differs."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from automl.base import loading
from automl.base.atomic import replacing
from automl.base.escape import markdown
from automl.report.figure import Cell, Table
from automl.report.grid_table import (
    GridCell,
    csv_text,
    deviation,
    heading,
    markdown_lines,
    merged,
    read_grid,
    text_lines,
)
from automl.report.read import SearchData
from automl.search.prepare import Prepared
from automl.tasks.published_study import UNKNOWN, UNPRINTED, Study
from search.config import Data, TrialConfig
from search.record import format_options, model_options


@dataclass(frozen=True, kw_only=True)
class TitledTable:
    """Table with a title, the scale of its searches, and notes."""

    title: str
    scale: str
    table: Table
    notes: Sequence[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        return [self.title, self.scale, *text_lines(merged(self.table)), *self.notes]

    def markdown(self) -> list[str]:
        notes = [f"\n{markdown(note)}" for note in self.notes]
        head = [f"## {markdown(self.title)}", "", markdown(self.scale), ""]
        return [*head, *markdown_lines(merged(self.table)), *notes, ""]


def table_of(rows: Sequence[Mapping[str, Cell]]) -> Table:
    """Return the table of rows that have the same columns."""
    return Table(columns=list(rows[0]), rows=[list(row.values()) for row in rows])


def compare(study: Study, search: SearchData) -> TitledTable:
    """Return the published table with the figures of a grid beside each published one."""
    cells = read_grid(search)
    columns = ["in the source", *(heading(name) for name in cells[0].params), "runs", "result"]
    rows: list[list[Cell]] = [
        [row.name, *map(str, cell.params.values()), cell.runs, cell.outcome]
        for row, cell in zip(study.rows, cells, strict=True)
    ]

    def add(name: str, values: Sequence[Cell]) -> None:
        """Add a column that has values."""
        if any(value is not None for value in values):
            columns.append(name)
            for line, value in zip(rows, values, strict=True):
                line.append(value)

    add("runs, published", [row.runs or None for row in study.rows])
    for metric, title in study.columns.items():
        for kind in ["last"] if metric.startswith("test_") else ["last", best_name(cells, metric)]:
            key, name = (metric, title) if kind == "last" else (f"{metric} {kind}", f"{title}, {kind}")
            add(f"{name}, published", [row.figures.get(key) for row in study.rows])
            columns += [f"{title}, {kind}", f"{title}, {kind} sd"]
            for line, cell in zip(rows, cells, strict=True):
                line += mean_and_deviation(cell, metric, kind)
        add(f"{title}, gain, published", [row.figures.get(f"{metric} gain") for row in study.rows])
        add(f"{title}, gain", gains(study, cells, metric))
    return TitledTable(
        title=f"{study.name}: {study.summary}",
        scale=search.metadata.scale,
        table=Table(columns=columns, rows=rows),
        notes=study.notes,
    )


def gains(study: Study, cells: Sequence[GridCell], metric: str) -> list[float | None]:
    """Return by how much the last epoch of each row is above that of its plain row."""
    means = {
        row.name: statistics.fmean(cell.scores[metric].last)
        for row, cell in zip(study.rows, cells, strict=True)
        if metric in cell.scores and cell.scores[metric].last
    }
    return [
        means[row.name] - means[row.plain] if {row.name, row.plain} <= means.keys() else None
        for row in study.rows
    ]


def best_name(cells: Sequence[GridCell], metric: str) -> str:
    """Return `max`, or `min` of an error."""
    return next((cell.scores[metric].best_name for cell in cells if metric in cell.scores), "max")


def mean_and_deviation(cell: GridCell, metric: str, kind: str) -> list[Cell]:
    """Return mean and standard deviation of a cell, or the reason why it has none."""
    scores = cell.scores.get(metric)
    values = [] if scores is None else scores.last if kind == "last" else scores.best
    return [statistics.fmean(values), deviation(values)] if values else [cell.outcome, None]


def write_tables(tables: Sequence[TitledTable], source: str, folder: Path, name: str) -> list[Path]:
    """Write tables as Markdown, and each as CSV, and return the paths."""
    texts = {
        f"{name}.md": "\n".join([line for t in tables for line in t.markdown()] + [f"Source: {source}\n"])
    }
    for number, table in enumerate(tables, start=1):
        part = f"-{number}" if len(tables) > 1 else ""
        texts[f"{name}{part}.csv"] = csv_text(table.table, table.scale)
    for file, text in texts.items():
        with replacing(folder / file) as new:
            new.write_text(text, encoding="utf-8")
    return [folder / file for file in texts]


def describe_scale(setup: Mapping[str, str], ready: Prepared) -> str:
    """Return the line of a search that is ready to start, given the setup of its source."""
    task = ready.task
    train, validation = task.size("train"), task.size("validation")
    return scale_line(setup, ready.configs, f"{train + validation:,} {task.noun}", f"{validation:,}")


def scale_line(setup: Mapping[str, str], configs: Sequence[TrialConfig], inputs: str, validated: str) -> str:
    """Return the line.

    Args:
        setup: What the source trained.
        configs: Configurations of the search, the baseline first.
        inputs: Number of training and validation inputs, with their noun.
        validated: Number of validation inputs.
    """
    data = configs[0].data
    here = {
        "model": name_models(configs),
        "data": Path(data.path).name if data.path else data.source,
        "inputs": inputs,
        "size": name_size(data),
        "epochs": str(configs[0].training.epochs),
        "subset": f"{data.subset:g}",
    }
    here = {key: value for key, value in here.items() if value}
    source = {**dict.fromkeys(here, UNKNOWN), "subset": "1", **setup}
    # A user's folder may have any name, so the number of inputs shows if it is the source's data.
    same = {"data"} if here["inputs"] == source["inputs"] else set()
    known = [key for key in here if source[key] != UNKNOWN and key not in same]
    different = [key for key in known if here[key] != source[key].removeprefix(UNPRINTED)]
    return (
        f"Here: {_join(here, here)}. Source: {_join(source, here)}. Different: "
        f"{', '.join(different) or 'none of these'}. Scores here are of {validated} validation inputs, those "
        f"of the source of {source['scored']}."
    )


def name_models(configs: Sequence[TrialConfig]) -> str:
    """Return the backbones with the options that all configurations have."""
    options = [model_options(config) for config in configs]
    common = {key: value for key, value in options[0].items() if all(o.get(key) == value for o in options)}
    names = " / ".join(sorted({loading.short_name(config.model.backbone) for config in configs}))
    return f"{names} ({format_options(common)})" if common else names


def name_size(data: Data) -> str:
    """Return the size of images, or an empty string."""
    sides = [getattr(data, side) for side in ("height", "width", "size") if hasattr(data, side)]
    return f"{' x '.join(map(str, sides))} px" if sides else ""


def _join(values: Mapping[str, str], keys: Mapping[str, str]) -> str:
    return "; ".join(f"{key} {values[key]}" for key in keys)

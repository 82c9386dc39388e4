"""Tables with published figures and the results of a grid."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from automl.config.escape import markdown
from automl.report.grid_table import (
    GridCell,
    csv_text,
    deviation,
    markdown_lines,
    merged,
    read_grid,
    text_lines,
)
from automl.report.plot import Cell, Table
from automl.report.read import Search
from automl.report.words import words
from automl.studies.study_table import Study
from search.atomic import replacing


@dataclass(frozen=True, kw_only=True)
class TitledTable:
    """Table with a title and notes."""

    title: str
    table: Table
    notes: Sequence[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        return [self.title, *text_lines(merged(self.table)), *self.notes]

    def markdown(self) -> list[str]:
        notes = [f"\n{markdown(note)}" for note in self.notes]
        return [f"## {markdown(self.title)}", "", *markdown_lines(merged(self.table)), *notes, ""]


def compare(study: Study, search: Search) -> TitledTable:
    """Return the published table with the figures of a grid beside each published one."""
    cells = read_grid(search)
    columns = ["in the source", *(words(name) for name in cells[0].params), "runs", "result"]
    rows: list[list[Cell]] = [
        [row.name, *map(str, cell.params.values()), cell.runs, cell.outcome]
        for row, cell in zip(study.rows, cells, strict=True)
    ]
    for metric, title in study.columns.items():
        for kind in ["last"] if metric.startswith("test_") else ["last", best_name(cells, metric)]:
            published = [
                row.figures.get(metric if kind == "last" else f"{metric} {kind}") for row in study.rows
            ]
            if any(published):
                columns.append(f"{title}, published")
                for line, figure in zip(rows, published, strict=True):
                    line.append(figure)
            columns += [f"{title}, {kind}", f"{title}, {kind} sd"]
            for line, cell in zip(rows, cells, strict=True):
                line += mean_and_deviation(cell, metric, kind)
    return TitledTable(title=f"{study.name}: {study.summary}", table=Table(columns=columns, rows=rows))


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
        texts[f"{name}{part}.csv"] = csv_text(table.table)
    for file, text in texts.items():
        with replacing(folder / file) as new:
            new.write_text(text, encoding="utf-8")
    return [folder / file for file in texts]

"""Plots of the report: a figure, a sentence on its content, and its numbers."""

from collections.abc import Sequence
from dataclasses import dataclass

from automl.report.figure import Figure

Cell = str | int | float | None


@dataclass(frozen=True, kw_only=True)
class Table:
    """Columns and rows; numbers are aligned and sorted as numbers."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True, kw_only=True)
class Plot:
    """One figure of the report.

    name: of its files. title: its heading.
    figure: None where there is nothing to draw; `says` then says why.
    says: what the figure shows, computed from the same numbers; it stands in for the figure.
    note: how to read it. warnings: what should not be overlooked.
    table: the numbers.
    """

    name: str
    title: str
    figure: Figure | None
    says: str
    note: str = ""
    warnings: Sequence[str] = ()
    table: Table | None = None


def absent(name: str, title: str, why: str, note: str = "") -> Plot:
    """A plot that cannot be drawn, and why."""
    return Plot(name=name, title=title, figure=None, says=why, note=note)

"""Plots of the report: a figure, a sentence on its content, and its numbers."""

from collections.abc import Sequence
from dataclasses import dataclass

from automl.report.figure import Figure

Cell = str | int | float | None


@dataclass(frozen=True, kw_only=True)
class Table:
    """Columns and rows. Numbers are aligned and sorted as numbers."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True, kw_only=True)
class Plot:
    """One figure of the report.

    Attributes:
        name: The name of its files.
        title: Its heading.
        figure: The figure, or None without data. `says` then has the reason.
        says: The content of the figure in words, computed from the same numbers.
        note: How to read it.
        warnings: Warnings about the numbers.
        table: The numbers.
    """

    name: str
    title: str
    figure: Figure | None
    says: str
    note: str = ""
    warnings: Sequence[str] = ()
    table: Table | None = None


def absent(name: str, title: str, why: str, note: str = "") -> Plot:
    """Return a plot without a figure, with the reason."""
    return Plot(name=name, title=title, figure=None, says=why, note=note)

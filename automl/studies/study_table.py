"""The studies: their grids, published figures and sources, as `studies.toml` beside this file has them.

Figures missing in a source are left out. The rows of a table are the cells of the grid, in order.
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

UNKNOWN = "not printed"
UNPRINTED = f"{UNKNOWN}, the study takes "  # before what the study chose itself


@dataclass(frozen=True, kw_only=True)
class Row:
    """Row of a published table, with the names and figures of the source.

    Attributes:
        name: Name of the row.
        figures: Published figures by metric. `METRIC max` is the maximum over epochs, `METRIC gain` the
            improvement over the row `plain`.
        runs: Published number of runs.
        plain: Name of the row that this one improves, if the source prints improvements.
    """

    name: str
    figures: Mapping[str, str] = field(default_factory=dict)
    runs: str = ""
    plain: str = ""


@dataclass(frozen=True, kw_only=True)
class Study:
    """Published experiment.

    Its grid is the space with its name in `search.study_spaces`. The runs of `ssa-equal-time` and
    `larnn-rounds` are in separate modules.

    Attributes:
        name: Name of the study.
        summary: Description in one line.
        source: Publication.
        columns: Metrics of the table with their titles.
        setup: What the source trained, by the names of `automl.studies.figures`. What it does not print is
            left out. `scored` is the split of its figures.
        rows: Published rows.
        data: Description of the required `--data`. Empty if the data are downloaded.
        notes: What a reader of the table must know, and rows of the source that are not run.
        settings: Settings of the search.
        small: Additional settings of the small version.
        reads_code: True if the small version reads the source code of this package.
    """

    name: str
    summary: str
    source: str
    columns: Mapping[str, str]
    setup: Mapping[str, str]
    rows: Sequence[Row]
    data: str = ""
    notes: Sequence[str] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    small: Mapping[str, Any] = field(default_factory=dict)
    reads_code: bool = False


def _rows(heads: Sequence[str], *rows: Sequence[str]) -> Iterator[Row]:
    for row in rows:
        cells = {head: cell for head, cell in zip(heads, row, strict=True) if cell}
        named = {name: cells.pop(name) for name in ("name", "runs", "plain") if name in cells}
        yield Row(**named, figures=cells)


def _read_studies() -> Iterator[Study]:
    content = tomllib.loads((files("automl.studies") / "studies.toml").read_text(encoding="utf-8"))
    for name, fields in content["studies"].items():
        setup, rows = fields.pop("setup"), fields.pop("rows", [[]])
        setup = content["setups"][setup] if isinstance(setup, str) else setup
        yield Study(name=name, **fields, setup=setup, rows=list(_rows(*rows)))


STUDIES: Mapping[str, Study] = {study.name: study for study in _read_studies()}

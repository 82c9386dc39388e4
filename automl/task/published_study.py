"""Published experiments: their figures and sources.

Figures missing in a source are left out. The rows of a table are the cells of the grid, in order.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from automl.base.serialise import from_json

UNKNOWN = "not printed"
UNPRINTED = f"{UNKNOWN}, the study takes "  # before what the study chose itself


@dataclass(frozen=True, kw_only=True)
class Row:
    """Row of a published table, with the names and figures of the source.

    Attributes:
        figures: Published figures by metric. `METRIC max` is the maximum over epochs, `METRIC gain` the
            improvement over the row `plain`.
        plain: Name of the row that this one improves, if the source prints improvements.
    """

    name: str
    figures: Mapping[str, str] = field(default_factory=dict)
    runs: str = ""
    plain: str = ""


@dataclass(frozen=True, kw_only=True)
class Study:
    """Published experiment.

    Its grid is the space with its name among the `grids` of its task.

    Attributes:
        columns: Metrics of the table with their titles.
        setup: What the source trained, by the names of `automl.search.studies`. What it does not print is
            left out. `scored` is the split of its figures.
        data: Description of the required `--data`. Empty if the data are downloaded.
        notes: What a reader of the table must know, and rows of the source that are not run.
        small: Additional settings of the small version.
        run: Reference of the function that runs it, if it is not one grid: see `automl.search.studies`.
        form_on_data: Suffix of the grid of the small version on data of the user, if it is another grid.
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
    run: str = ""
    form_on_data: str = ""
    reads_code: bool = False


def read_studies(module: str) -> Sequence[Study]:
    """Read `studies.toml` beside a module. Its table `shared` has the defaults of its studies."""
    content = tomllib.loads(Path(module).with_name("studies.toml").read_text(encoding="utf-8"))
    shared = content.get("shared", {})
    return [from_json(Study, {**shared, **study}, study["name"]) for study in content["studies"]]

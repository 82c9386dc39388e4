"""Studies: published experiments, nearly all of them grids, each shown beside the figures of its source.

A study runs its grid on Ray, with every trial in MLflow. A line says how it differs from the source.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from automl.base import loading
from automl.base.errors import InputError, unknown
from automl.base.escape import markdown
from automl.base.lazy import contributed, resolve
from automl.base.options import STORAGE, with_keywords_of
from automl.config.search_options import StudyOptions
from automl.config.settings import ParsedSettings, Settings
from automl.report import grid_table
from automl.report.figure import Cell, Table
from automl.report.grid_table import LAST, GridCell
from automl.report.read import SearchData
from automl.search.prepare import Prepared
from automl.search.run_search import Search, start_or_resume
from automl.task.published_study import UNKNOWN, UNPRINTED, Study
from search.config import Data, TrialConfig
from search.grid import SMALL
from search.record import format_options, model_options
from search.space import GRID

FILES = "study"  # the name of the files of tables, without their ending


@dataclass(frozen=True, kw_only=True)
class TitledTable:
    """Table with a title, the scale of its searches, and notes."""

    title: str
    scale: str
    table: Table
    notes: Sequence[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return the lines for a terminal."""
        return [self.title, self.scale, *grid_table.text_lines(grid_table.merged(self.table)), *self.notes]

    def markdown(self) -> list[str]:
        """Return the lines of a Markdown file."""
        notes = [f"\n{markdown(note)}" for note in self.notes]
        head = [f"## {markdown(self.title)}", "", markdown(self.scale), ""]
        return [*head, *grid_table.markdown_lines(grid_table.merged(self.table)), *notes, ""]


def table_of(rows: Sequence[Mapping[str, Cell]]) -> Table:
    """Return the table of rows that have the same columns."""
    return Table(columns=list(rows[0]), rows=[list(row.values()) for row in rows])


def compare(study: Study, search: SearchData) -> TitledTable:
    """Return the published table with the figures of a grid beside each published one."""
    cells = grid_table.read_grid(search)
    columns = ["in the source", *(grid_table.heading(name) for name in cells[0].params), "runs", "result"]
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
        scores = cells[0].scores.get(metric)
        for kind in grid_table.kinds_of(metric, maximize=scores is None or scores.metric.maximize):
            key, name = (metric, title) if kind == LAST else (f"{metric} {kind}", f"{title}, {kind}")
            add(f"{name}, published", [row.figures.get(key) for row in study.rows])
            columns += [f"{title}, {kind}", f"{title}, {kind} sd"]
            for line, cell in zip(rows, cells, strict=True):
                line += cell.mean_and_deviation(metric, kind)
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


def write_tables(tables: Sequence[TitledTable], source: str, folder: Path, name: str) -> list[Path]:
    """Write tables as Markdown, and each as CSV, and return the paths."""
    texts = {
        f"{name}.md": "\n".join([line for t in tables for line in t.markdown()] + [f"Source: {source}\n"])
    }
    for number, table in enumerate(tables, start=1):
        part = f"-{number}" if len(tables) > 1 else ""
        texts[f"{name}{part}.csv"] = grid_table.csv_text(table.table, table.scale)
    return grid_table.write_texts(folder, texts)


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


@dataclass(frozen=True, kw_only=True)
class StudyResult:
    """Result of a study.

    Attributes:
        study: The study.
        tables: The tables, with results and published figures.
        results: Its searches.
        files: The files that hold the tables.

    Example:
        After the example of `run_study`:

        >>> len(repeated.tables), repeated.missing
        (1, [])
    """

    study: Study
    tables: Sequence[TitledTable]
    results: Sequence[Search]
    files: Sequence[Path]

    @property
    def missing(self) -> list[str]:
        """Cells of the grids without a result."""
        return [cell for result in self.results for cell in result.missing]


def list_studies() -> Mapping[str, Study]:
    """Return the studies of all tasks by name."""
    return contributed("studies")


@with_keywords_of(StudyOptions)
def run_study(name: str, *, small: bool = False, **settings: Any) -> StudyResult:
    """Run a study, or resume it, and compare its results with the published ones.

    Args:
        name: The name of the study, as `automl studies` lists it.
        small: Run the small version, on data of the package or on `data`.
        **settings: Fields of `Settings`, such as `data`, `seeds`, `epochs` and `storage`.

    Returns:
        The study with its tables.

    Raises:
        InputError: The study does not exist, it needs data, or `run_search` raises it.

    Example:
        >>> import automl
        >>> repeated = automl.run_study("da-conventional", small=True, epochs=1, subset=0.05)
        >>> repeated.study.name
        'da-conventional'
    """
    study, fields = _open(name, small, settings)
    results, tables = (resolve(study.run) if study.run else _grid)(study, small, fields)
    files = write_tables(tables, study.source, results[-1].folder, FILES)
    return StudyResult(study=study, tables=tables, results=results, files=files)


def study_settings(name: str, *, small: bool = False, **settings: Any) -> ParsedSettings:
    """Return the settings of the search of a study, with the arguments of `run_study`.

    Raises InputError if `run_study` would, or if later searches of the study depend on its first.
    """
    study, fields = _open(name, small, settings)
    if study.run:
        raise InputError(
            f"study {name!r} has several searches, and later ones depend on earlier ones, so its time is not "
            f"known before. Leave --dry-run out"
        )
    space = f"{name}{form_of(study, small, fields)}"
    return Settings(space=space, sampler=GRID, name=search_name(study, small), **fields).parsed


def _open(name: str, small: bool, settings: Mapping[str, Any]) -> tuple[Study, dict[str, Any]]:
    known = list_studies()
    if name not in known:
        raise unknown("study", name, known)
    study = known[name]
    data = settings.get("data")
    if data is None and study.data and not small:
        raise InputError(f"study {name!r} needs {study.data}. Or run its small version with --small")
    if data is None and small and study.reads_code:
        data = str(Path(__file__).parents[1])
    fields = {
        "equal": "epochs",
        "seeds": 1,
        **study.settings,
        **(study.small if small else {}),
        "storage": STORAGE,
        **settings,
        "data": data,
        "study": name,
    }
    return study, fields


def form_of(study: Study, small: bool, settings: Mapping[str, Any]) -> str:
    """Return the suffix of the names of its grids."""
    if not small:
        return ""
    return SMALL + (study.form_on_data if settings["data"] is not None else "")


def search_name(study: Study, small: bool) -> str:
    """Return the name of the search of a study."""
    return f"{study.name}{SMALL if small else ''}"


def train_grid(study: Study, space: str, name: str, settings: Mapping[str, Any]) -> Search:
    """Train the cells of a grid, or resume that."""
    grid = Settings(space=space, sampler=GRID, name=name, **settings).parsed
    return start_or_resume(grid, partial(describe_scale, study.setup))


def _grid(study: Study, small: bool, settings: Mapping[str, Any]) -> tuple[list[Search], list[TitledTable]]:
    space = f"{study.name}{form_of(study, small, settings)}"
    result = train_grid(study, space, search_name(study, small), settings)
    return [result], [compare(study, result)]

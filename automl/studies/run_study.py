"""Run a study: its grid on Ray, every trial in MLflow, and tables with the published figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from automl.base.errors import InputError, unknown
from automl.base.options import STORAGE, with_keywords_of
from automl.base.registry import contributions, resolve
from automl.config.settings import Settings
from automl.search.run_search import start_or_resume
from automl.search.search import Search
from automl.studies.figures import TitledTable, compare, describe_scale, write_tables
from automl.studies.options import StudyOptions
from automl.tasks.published_study import Study
from search.grid import GRID, SMALL

FILES = "study"  # the name of the files of tables, without their ending


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
    return {study.name: study for studies in contributions("studies") for study in studies}


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


def study_settings(name: str, *, small: bool = False, **settings: Any) -> Settings:
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
    return Settings(space=space, sampler=GRID, name=search_name(study, small), **fields)


def _open(name: str, small: bool, settings: Mapping[str, Any]) -> tuple[Study, dict[str, Any]]:
    """Return a study, and the settings of its searches."""
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
        **study.settings,
        **(study.small if small else {}),
        "seeds": 1,
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
    grid = Settings(space=space, sampler=GRID, name=name, **settings)
    return start_or_resume(grid, partial(describe_scale, study.setup))


def _grid(study: Study, small: bool, settings: Mapping[str, Any]) -> tuple[list[Search], list[TitledTable]]:
    space = f"{study.name}{form_of(study, small, settings)}"
    result = train_grid(study, space, search_name(study, small), settings)
    return [result], [compare(study, result)]

"""Run a study: its grid on Ray, every trial in MLflow, and tables with the published figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from automl.base.command_line import STORAGE
from automl.base.errors import InputError, unknown
from automl.base.options import with_keywords_of
from automl.config.settings import Settings
from automl.search.run_search import start_or_resume
from automl.search.search import Search
from automl.studies.figures import TitledTable, compare, describe_scale, write_tables
from automl.studies.larnn_studies import ROUNDS, SMALL_TRIALS, rounds_table, write_sequences
from automl.studies.options import StudyOptions
from automl.studies.ssa_studies import best_rate, comparison_tables, sweep_table
from automl.studies.study_table import STUDIES, Study
from search.grid import GRID
from search.study_spaces import PHOTOS, SMALL, equal_time_grid

EQUAL_TIME, SWEEP, LARNN = "ssa-equal-time", "ssa-lr-sweep", "larnn-rounds"
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
    if name not in STUDIES:
        raise unknown("study", name, STUDIES)
    study = STUDIES[name]
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
    results, tables = {EQUAL_TIME: _equal_time, LARNN: _rounds}.get(name, _grid)(study, small, fields)
    files = write_tables(tables, study.source, results[-1].folder, FILES)
    return StudyResult(study=study, tables=tables, results=results, files=files)


def _form(study: Study, small: bool, settings: Mapping[str, Any]) -> str:
    """Return the suffix of the names of its grids."""
    if not small:
        return ""
    return SMALL + PHOTOS if study.name in (SWEEP, EQUAL_TIME) and settings["data"] is not None else SMALL


def _called(study: Study, small: bool) -> str:
    return f"{study.name}{SMALL if small else ''}"


def _train(study: Study, space: str, name: str, settings: Mapping[str, Any]) -> Search:
    grid = Settings(space=space, sampler=GRID, name=name, **settings)
    return start_or_resume(grid, partial(describe_scale, study.setup))


def _grid(study: Study, small: bool, settings: Mapping[str, Any]) -> tuple[list[Search], list[TitledTable]]:
    result = _train(study, f"{study.name}{_form(study, small, settings)}", _called(study, small), settings)
    return [result], [compare(study, result)]


def _equal_time(
    study: Study, small: bool, settings: Mapping[str, Any]
) -> tuple[list[Search], list[TitledTable]]:
    """Run the sweep of learning rates, and then both models with the best one."""
    form, called = _form(study, small, settings), _called(study, small)
    sweep = _train(study, f"{SWEEP}{form}", f"{called}-sweep", settings)
    if sweep.missing or not sweep.done:
        return [sweep], [sweep_table(sweep)] if sweep.done else []
    rate = best_rate(sweep)
    compared = _train(study, equal_time_grid(rate, form), f"{called}-{rate:g}", {**settings, "equal": "time"})
    return [sweep, compared], [sweep_table(sweep), *comparison_tables(compared, rate)]


def _rounds(study: Study, small: bool, settings: Mapping[str, Any]) -> tuple[list[Search], list[TitledTable]]:
    """Search the space of each round, as the source did. These are not grids."""
    if settings["seeds"] > 1:
        raise InputError(f"study {study.name!r} consists of two searches without cells; leave --seeds out")
    called = _called(study, small)
    if small and settings["data"] is None:
        settings = {**settings, "data": str(write_sequences(Path(settings["storage"])))}
    results = []
    for space, published in ROUNDS.items():
        trials = SMALL_TRIALS if small else published.trials
        search_settings = Settings(
            space=space, sampler="tpe", name=f"{called}-{space}", trials=trials, **settings
        )
        setup = {**study.setup, "epochs": str(published.epochs)}
        results.append(start_or_resume(search_settings, partial(describe_scale, setup)))
    return results, [rounds_table(study, dict(zip(ROUNDS, results, strict=True)))]

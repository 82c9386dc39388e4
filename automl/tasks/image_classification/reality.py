"""The study `reality-check`: which published attention modules beat the plain model in equal time.

Each column is a grid of the plain model and the rows that fit, on the same seeds. A module of the user's has
a grid of its own in each column, and is compared with the plain runs of the first grid.
"""

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attention.spec import Spec
from automl.base.errors import InputError
from automl.base.loading import make_absolute, short_name
from automl.base.units import pluralize
from automl.config.nouns import split_names
from automl.judge.decision import holm
from automl.judge.evalues import is_futile
from automl.judge.statistics import ALPHA, Difference, least_pairs, paired
from automl.report.figure import Cell
from automl.report.grid_table import TEST, TRAINED, GridCell, read_grid
from automl.report.read import SearchData
from automl.search.run_search import Search
from automl.search.studies import TitledTable, name_models, name_size, search_name, table_of, train_grid
from automl.storage.folder import exists, find_search
from automl.task.published_study import Study
from automl.tasks.image_classification.study import (
    BLOCK,
    COLUMNS,
    ENDS,
    NOTHING,
    OWN,
    ROWS,
    SMALL_COLUMNS,
    SMALL_ROWS,
    placement,
    sites_of,
)
from backbones.contract import check_contract
from search.class_metrics import ACCURACY
from search.config import TrialConfig
from search.record import State

MOST, LEAST = 20, 3  # most seeds of a module, and seeds before a module may be given up
BETTER, WORSE, LOST, OPEN, MISFIT = "better", "worse", "given up", "not shown", "does not fit"
NAMES: Mapping[str, str] = {"conv1x1": "1x1 convolution (control)", BLOCK: "one block more (control)"}


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """Judgement of a row in a column.

    Attributes:
        test: The paired comparison with the plain model. None with fewer than two seeds.
        p: The p-value after Holm's procedure over all rows of the column.
        outcome: `better`, `worse`, `given up` or `not shown`.
    """

    test: Difference | None
    p: float
    outcome: str


def is_given_up(differences: np.ndarray) -> bool:
    """Return whether a gain got out of sight, after `LEAST` seeds or more."""
    return len(differences) >= LEAST and bool(is_futile(differences)[LEAST - 1 :].any())


def judge(differences: Mapping[str, np.ndarray], *, family: int) -> dict[str, Judgement]:
    """Judge the rows of a column by their differences from the plain model, by seed.

    `family` is the number of rows, also of those that are not trained.
    """
    tests = {name: paired(d.tolist(), margin=0.0) for name, d in differences.items() if len(d) > 1}
    adjusted = dict(zip(tests, holm([test.p for test in tests.values()], family=family), strict=True))
    judged = {}
    for name, d in differences.items():
        test, p = tests.get(name), adjusted.get(name, 1.0)
        outcome = LOST if is_given_up(d) else OPEN
        if test is not None and p <= ALPHA:
            outcome = BETTER if test.mean > 0 else WORSE
        judged[name] = Judgement(test=test, p=p, outcome=outcome)
    return judged


def find_misfits(config: TrialConfig, rows: Mapping[str, str]) -> dict[str, str]:
    """Return why modules do not fit their sites in the model of a column, of those that do not."""
    sites = sites_of(config)
    faults = {}
    for module, where in rows.items():
        chosen = (sites[name] for name in placement(config, module, where))
        shapes = {(site.channels, site.resolution): site for site in chosen}
        checks = (check for site in shapes.values() for check in check_contract(Spec(module), site))
        if broken := next((check.message for check in checks if not check.passed), None):
            faults[module] = broken
    return faults


def column_table(
    column: str,
    grid: SearchData,
    own: Mapping[str, SearchData],
    rows: Mapping[str, str],
    faults: Mapping[str, str],
) -> TitledTable:
    """Return the table of a column.

    `own` are the grids of the user's modules. `rows` are all rows, and `faults` tells why some do not fit.
    """
    cells = {str(cell.params["module"]): cell for cell in read_grid(grid)}
    cells |= {module: cell for module, search in own.items() for cell in read_grid(search)}
    plain = _scores(cells[NOTHING])
    differences = {}
    for module in rows:
        if module in cells and cells[module].outcome == TRAINED:
            scores = _scores(cells[module])
            differences[module] = np.array(
                [scores[seed] - plain[seed] for seed in sorted(scores.keys() & plain)]
            )
    judged = judge(differences, family=len(rows))
    lines: list[dict[str, Cell]] = []
    for module, where in rows.items():
        line: dict[str, Cell] = {"module": NAMES.get(module, short_name(module)), "sites": where}
        line |= dict.fromkeys(("difference, points", "95% interval", "ahead", "time"))
        if module in judged:
            line |= _figures(judged[module], differences[module], cells[module])
        else:
            stopped = cells[module].outcome if module in cells else "not started"
            line["outcome"] = MISFIT if module in faults else stopped
        lines.append(line)
    notes = [
        f"{short_name(module)} does not fit, and is not trained: {why}" for module, why in faults.items()
    ]
    return TitledTable(
        title=f"{column}: accuracy on the test images, in points above the plain model",
        scale=grid.metadata.scale,
        table=table_of(lines),
        notes=[*_notes(plain, len(rows)), *notes],
    )


def _scores(cell: GridCell) -> dict[int, float]:
    """Return the test accuracy of each seed in points."""
    name = f"{TEST}{ACCURACY.name}"
    runs = [
        record for record in cell.records if record.state is State.COMPLETE and name in record.history[-1]
    ]
    return {record.config.seed: 100 * record.history[-1][name] for record in runs}


def _figures(judged: Judgement, differences: np.ndarray, cell: GridCell) -> dict[str, Cell]:
    ratios = [record.profile["time_ratio"] for record in cell.records if "time_ratio" in record.profile]
    bounds = None if judged.test is None else judged.test.bounds
    return {
        "difference, points": f"{differences.mean():+.2f}" if len(differences) else None,
        "95% interval": f"{bounds[0]:.2f} to {bounds[1]:.2f}" if bounds else None,
        "ahead": f"{(differences > 0).sum()} of {len(differences)}",
        "time": f"x{statistics.fmean(ratios):.2f}" if ratios else None,
        "outcome": judged.outcome,
    }


def _notes(plain: Mapping[int, float], rows: int) -> Iterator[str]:
    """Yield what a reader of a table must know."""
    if plain:
        yield f"plain: {statistics.fmean(plain.values()):.2f} % in {pluralize(len(plain), 'runs')}"
    least = least_pairs(ALPHA / rows)
    yield f"better and worse: Holm's procedure over all {rows} rows, at 5 %; given up: a gain is out of sight"
    if len(plain) < least:
        few = pluralize(len(plain), "seeds")
        yield f"{few} can show no row as better or worse; give --seeds {least} or more"


def run(study: Study, small: bool, settings: Mapping[str, Any]) -> tuple[list[Search], list[TitledTable]]:
    """Train the grid of each column, and then the user's modules in it."""
    columns, rows = (SMALL_COLUMNS, SMALL_ROWS) if small else (COLUMNS, ROWS)
    data, modules = settings["data"], _own_modules(settings.get("attention"), rows)
    if small and data is not None:
        raise InputError(f"study {study.name!r} has its own data with --small; leave --data out")
    if settings["seeds"] > MOST:
        raise InputError(f"study {study.name!r} takes up to {MOST} --seeds; got {settings['seeds']}")
    misfits = {name: find_misfits(config, modules) for name, config in columns.items()}
    for module in modules:
        if all(module in faults for faults in misfits.values()):
            reasons = "; ".join(f"{column}: {faults[module]}" for column, faults in misfits.items())
            raise InputError(f"{short_name(module)} fits no column of study {study.name!r}. {reasons}")
    searches: list[Search] = []
    tables = []
    for column, config in columns.items():
        recorded = COLUMNS["lookup"] if small else config
        setup = {
            "model": name_models([recorded]), "data": recorded.data.source,
            "size": name_size(recorded.data), "epochs": str(recorded.training.epochs),
            "subset": f"{recorded.data.subset:g}",
        }  # fmt: skip
        here = replace(study, setup={**study.setup, **setup})  # what the recorded table trained
        options = {**settings, "data": data if config.data.source == "nette" else None}
        space, name = f"{study.name}-{column}", f"{search_name(study, small)}-{column}"
        known: Sequence[str] = ()  # the modules of a grid that exists already, which are known to fit
        if exists(name, settings["storage"]):
            known = find_search(name, settings["storage"])[1].settings.question.attention_types or ()
        faults = find_misfits(config, {row: where for row, where in rows.items() if row not in known})
        options["attention"] = ",".join(row for row in rows if row not in faults)
        grid = train_grid(here, space, name, options)
        own: dict[str, Search] = {}
        for module in () if grid.missing else (m for m in modules if m not in misfits[column]):
            called = f"{name}-{re.sub('[^A-Za-z0-9_]+', '-', short_name(module))}"
            own[module] = train_grid(here, f"{space}-{OWN}", called, {**options, "attention": module})
        searches += [grid, *own.values()]
        tables.append(column_table(column, grid, own, {**rows, **modules}, {**faults, **misfits[column]}))
        if any(search.missing for search in searches):
            break
    return searches, tables


def _own_modules(names: str | None, rows: Mapping[str, str]) -> dict[str, str]:
    """Return the modules of `--attention` with their place. Raise InputError if there is none, or a row."""
    modules = [make_absolute(module) for module in split_names(names) or ()]
    if names is not None and not modules:
        raise InputError(f"--attention must name modules, such as mine.py:Gate; got {names!r}")
    if known := [module for module in modules if module in rows]:
        raise InputError(f"{known[0]} is a row of the table already; leave it out of --attention")
    return dict.fromkeys(modules, ENDS)

"""The table of a grid has every cell with its runs, mean and deviation, or the word for what happened."""

import csv
from pathlib import Path
from typing import Any

import optuna
import pytest

from automl.report.grid_table import FILES, grid, merged, read_grid, text_lines, write_grid
from automl.report.read import SearchData, read_search
from automl.report.run_report import write_page
from automl.tasks.detection.config import BOX_AP
from search.grid import grid_cells
from search.record import State
from search.spaces import load_space
from search.study import CELLS, resume_study
from tests.helpers.report_cases import frozen, plan_of, save_search

PLAN = plan_of(metric=BOX_AP, objectives=["box_ap"])
OVER = "memory 5.1GB exceeds the limit of 4GB"
NAN = "the training loss became nan in epoch 1, step 2"


def saved(
    folder: Path,
    space: str,
    trials_of_cells: list[tuple[dict[str, Any], int, State, list[float], str | None]],
) -> SearchData:
    """A grid's search with these trials: parameters, seed, state, box AP by epoch and reason."""
    trials = []
    for params, seed, state, scores, reason in trials_of_cells:
        trial = optuna.trial.FixedTrial(params)
        config = load_space(space).draw(trial).change(seed=seed)  # type: ignore[arg-type]
        history = [
            {"epoch": i, "resource": i, "box_ap": score, "mask_ap": score / 2}
            for i, score in enumerate(scores, start=1)
        ]
        label = ", ".join(f"{key}={value}" for key, value in params.items())
        kinds = trial.distributions
        trials.append(
            frozen(params, kinds, config, PLAN, state, history, {"memory": 2e9}, reason, variant=label)
        )
    saved_folder = save_search(folder, trials, plan=PLAN, space=space, sampler="grid")
    cells = {cell.label: dict(cell.params) for cell in grid_cells(load_space(space))}
    resume_study(saved_folder, name="made-up").set_user_attr(CELLS, cells)
    return read_search("made-up", str(folder))


def test_every_cell_has_its_row_in_the_order_of_the_space(tmp_path: Path) -> None:
    complete = State.COMPLETE
    search = saved(
        tmp_path,
        "da-conventional",
        [
            ({"attention": "decomposed", "modules": 7}, 0, complete, [0.2, 0.42, 0.40], None),
            ({"attention": "decomposed", "modules": 7}, 1, complete, [0.2, 0.38, 0.44], None),
            ({"attention": "decomposed", "modules": 1}, 0, complete, [0.41], None),
            ({"attention": "decomposed", "modules": 1}, 1, State.INFEASIBLE, [], NAN),
            ({"attention": "conventional", "modules": 5}, 0, State.INFEASIBLE, [], OVER),
            ({"attention": "conventional", "modules": 7}, 0, State.ERROR, [], "RuntimeError: no"),
        ],
    )
    (section,) = grid(search)
    assert write_page(search, None, [section])
    table = section.plots[0].table
    assert list(table.columns) == [
        "attention",
        "modules",
        "runs",
        "result",
        *(
            f"{name} {which}"
            for name in ("box_ap", "mask_ap")
            for which in ("last", "last sd", "max", "max sd")
        ),
        "memory, MB",
    ]
    rows = {(row[0], row[1]): list(row[2:]) for row in table.rows}
    kinds = [*["decomposed"] * 3, *["conventional"] * 3]
    assert [row[:2] for row in table.rows] == [
        [kind, count] for kind, count in zip(kinds, ["1", "5", "7", "1", "5", "7"], strict=True)
    ]
    assert rows["decomposed", "7"][:2] == [2, "trained"]
    assert rows["decomposed", "7"][2:6] == pytest.approx([42, 2.828427, 43, 1.414214])
    assert rows["decomposed", "7"][6:8] == pytest.approx([21, 1.414214])
    assert rows["decomposed", "1"][:2] == [1, "1 trained, 1 diverged"]
    assert rows["decomposed", "1"][3] is None, "one run has no deviation"
    assert rows["conventional", "5"][:3] == [0, "over a limit (memory)", "over a limit (memory)"]
    assert rows["conventional", "7"][:3] == [0, "error", "error"]
    assert [cell.outcome for cell in read_grid(search)].count("not started") == 2
    assert "not started" in section.plots[0].says


def test_it_is_written_as_csv_and_markdown(tmp_path: Path) -> None:
    cells = [({"heads": heads}, 0, State.COMPLETE, [0.4 + heads / 1000], None) for heads in (8, 32)]
    search = saved(tmp_path, "da-heads", cells)
    table = write_grid(search, tmp_path)
    rows = list(csv.reader((tmp_path / FILES[0]).read_text().splitlines()))
    assert rows[0] == list(table.columns)
    assert [row[0] for row in rows[1:]] == ["1", "8", "32"]
    lines = (tmp_path / FILES[1]).read_text().splitlines()
    assert len(lines) == 5
    assert lines[2].startswith("| 1 | 0 | not started | not started |")
    assert text_lines(merged(table))[-1].split()[:4] == ["32", "1", "trained", "43.2"]

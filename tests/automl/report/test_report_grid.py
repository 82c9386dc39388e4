"""A search over a grid is shown as its table, with a word where a model did not fit."""

from pathlib import Path
from typing import Any

import optuna
import pytest
from report_cases import frozen, plan_of, save_search

from automl.report.grid import grid
from automl.report.page import write_page
from automl.report.plot import Table
from automl.report.read import read_search
from search.metric import BOX_AP
from search.record import State
from search.spaces import SPACES

PLAN = plan_of(metric=BOX_AP, objectives=["box_ap"])
OVER = "memory 5.1GB exceeds the limit of 4GB"


def saved(folder: Path, space: str, found: list[tuple[dict[str, Any], State, float, str | None]]) -> None:
    trials = []
    for params, state, score, reason in found:
        trial = optuna.trial.FixedTrial(params)
        config = SPACES[space].draw(trial)  # type: ignore[arg-type]
        history = [{"epoch": 1.0, "resource": 1.0, "box_ap": score}] if reason is None else []
        trials.append(
            frozen(params, trial.distributions, config, PLAN, state, history, {"memory": 2e9}, reason)
        )
    save_search(folder, trials, plan=PLAN, space=space, sampler="grid")


def table_of(folder: Path) -> Table:
    search = read_search("made-up", str(folder))
    (section,) = grid(search)
    assert write_page(search, None, [section])
    found = section.plots[0].table
    assert found is not None
    return found


def test_two_choices_are_rows_and_columns(tmp_path: Path) -> None:
    found = [
        ({"attention": "without attention"}, State.COMPLETE, 0.402, None),
        ({"attention": "decomposed", "count": 7}, State.COMPLETE, 0.412, None),
        ({"attention": "decomposed", "count": 1}, State.COMPLETE, 0.404, None),
        ({"attention": "decomposed", "count": 5}, State.PRUNED, 0.311, None),
        ({"attention": "sagan", "count": 1}, State.COMPLETE, 0.406, None),
        ({"attention": "sagan", "count": 5}, State.INFEASIBLE, 0, OVER),
        ({"attention": "sagan", "count": 7}, State.ERROR, 0, "RuntimeError: no"),
    ]
    saved(tmp_path, "coco-modules", found)
    table = table_of(tmp_path)
    assert table.columns == ["attention, then count", "1", "5", "7", "none"]
    rows = {row[0]: list(row[1:]) for row in table.rows}
    assert rows["decomposed"] == pytest.approx([40.4, "pruned at 31.1", 41.2, None])
    assert rows["sagan"] == pytest.approx([40.6, "out of memory", "error", None])
    assert rows["without attention"] == pytest.approx([None, None, None, 40.2])


def test_one_choice_has_its_costs_beside_it(tmp_path: Path) -> None:
    found = [({"heads": heads}, State.COMPLETE, 0.4 + heads / 1000, None) for heads in (8, 0, 32)]
    saved(tmp_path, "coco-heads", found)
    table = table_of(tmp_path)
    assert table.columns == ["heads", "box_ap", "memory, MB"]
    assert [row[0] for row in table.rows] == ["0", "8", "32"]
    assert [row[1] for row in table.rows] == pytest.approx([40, 40.8, 43.2])
    assert {row[2] for row in table.rows} == {2000.0}

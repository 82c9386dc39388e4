"""The study `reality-check`: places of modules, their judgement, the table, and what it refuses."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from automl.report.grid_table import TRAINED, GridCell
from automl.search.studies import list_studies
from automl.tasks.image_classification import reality
from automl.tasks.image_classification.reality import find_misfits, judge
from automl.tasks.image_classification.study import (
    BRANCHES,
    COLUMNS,
    ENDS,
    FIRST,
    LAST,
    MIDDLE,
    NOTHING,
    ROWS,
    SMALL_COLUMNS,
    placement,
    sites_of,
)
from search.drawn import Drawn
from search.record import State, TrialRecord
from search.space import load_space

DIGITS = SMALL_COLUMNS["digits"]


@pytest.mark.parametrize("column", [*COLUMNS, *SMALL_COLUMNS])
def test_every_row_has_sites_in_every_column(column: str) -> None:
    config = {**COLUMNS, **SMALL_COLUMNS}[column]
    known = [*sites_of(config)]
    for module, where in ROWS.items():
        chosen = placement(config, module, where)
        assert chosen, module
        assert chosen.keys() <= {*known}
        assert len(chosen) == 1 or where == BRANCHES
    assert [*placement(config, "ssa", BRANCHES)] == [name for name in known if name.endswith("branch")]


def test_places_are_those_of_papers() -> None:
    few = COLUMNS["few"]
    assert [*placement(few, "ssa", FIRST)] == ["stage1.block2.branch"]
    assert [*placement(few, "timm:nl", MIDDLE)] == ["stage3.block2"]
    assert [*placement(few, "multihead", LAST)] == ["stage4.block2"]
    assert [*placement(few, "ssa", ENDS)] == [f"stage{number}.block2" for number in (1, 2, 3, 4)]
    assert [*placement(COLUMNS["lookup"], "timm:nl", MIDDLE)] == ["stage2.block1"], "the last of two stages"


def test_a_grid_has_the_plain_model_and_its_rows_and_that_of_a_user_the_module_alone() -> None:
    cells = Drawn(load_space("reality-check-digits")).cells
    assert [cell.params["module"] for cell in cells] == [NOTHING, *ROWS]
    own = Drawn(load_space("reality-check-digits-own").with_attention(["timm:se"]))
    (cell,) = own.cells
    assert [*cell.config.model.placement] == [f"stage{number}.block2" for number in (1, 2, 3)]
    assert {spec.type for spec in cell.config.model.placement.values()} == {"timm:se"}
    assert not own.baseline.model.placement


def test_outcomes_of_rows() -> None:
    noise = np.random.default_rng(0).normal(0, 1, 20)
    noise -= noise.mean()
    differences = {
        "up": 2 + noise,
        "down": noise - 2,
        "lost": np.array([-1.0, -1.1, -0.9]),
        "open": noise[:2],
    }
    judged = judge(differences, family=25)
    outcomes = {name: row.outcome for name, row in judged.items()}
    assert outcomes == {"up": "better", "down": "worse", "lost": "given up", "open": "not shown"}
    assert judge({"one": np.array([3.0])}, family=25)["one"].test is None


def test_the_whole_column_is_one_family() -> None:
    """The smallest p of seven seeds is 2 / 2^7, which is enough for a family of 3 and not of 25."""
    seven = {"up": np.array([1.0, 1.1, 0.9, 1.2, 0.8, 1.3, 0.7]), "none": np.array([1.0, -1.0, 0.5])}
    assert [judge(seven, family=family)["up"].outcome for family in (3, 25)] == ["better", "not shown"]
    assert judge(seven, family=25)["up"].p == pytest.approx(25 * 2 / 2**7)


def test_a_module_that_does_not_fit_is_named() -> None:
    faults = find_misfits(DIGITS, {"timm:halo": LAST, "conv1x1": LAST})
    assert faults.keys() == {"timm:halo"}
    assert faults["timm:halo"].startswith("timm:halo at stage3.block2 fails")


def fake_grid(calls: list[Any], scores: dict[str, list[float]]) -> Any:
    def train(study: Any, space: str, name: str, settings: dict[str, Any]) -> Any:
        modules = ["own"] if space.endswith("-own") else [NOTHING, *settings["attention"].split(",")]
        calls.append((space, name, settings["attention"]))
        cells = []
        for module in modules:
            records = [
                TrialRecord(
                    number=seed,
                    config=DIGITS.change(seed=seed),
                    state=State.COMPLETE,
                    history=[{"epoch": 1, "test_accuracy": score}],
                    profile={"time_ratio": 1.5},
                )
                for seed, score in enumerate(scores[module])
            ]
            cells.append(
                GridCell(label=module, params={"module": module}, outcome=TRAINED, records=records, scores={})
            )
        return SimpleNamespace(
            cells=cells, missing=[], metadata=SimpleNamespace(scale=""), folder=settings["storage"]
        )

    return train


def test_the_table_has_a_users_module_beside_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    scores = {NOTHING: [0.5, 0.6, 0.7], "ssa": [0.51, 0.6, 0.72], "conv1x1": [0.4, 0.5, 0.61]}
    monkeypatch.setattr(reality, "train_grid", fake_grid(calls, {**scores, "own": [0.6, 0.7, 0.81]}))
    monkeypatch.setattr(reality, "read_grid", lambda search: search.cells)
    monkeypatch.setattr(
        reality, "find_misfits", lambda config, rows: {row: "is odd" for row in rows if row == "timm:se"}
    )
    settings = {"storage": str(tmp_path), "seeds": 3, "data": None, "attention": "mine.py:Gate"}
    _, (table,) = reality.run(list_studies()["reality-check"], True, settings)
    assert [(space, name) for space, name, _ in calls] == [
        ("reality-check-digits", "reality-check-small-digits"),
        ("reality-check-digits-own", "reality-check-small-digits-mine-py-Gate"),
    ]
    assert calls[0][2] == "ssa,conv1x1"
    assert calls[1][2].endswith("/mine.py:Gate")
    rows = [dict(zip(table.table.columns, row, strict=True)) for row in table.table.rows]
    assert [row["outcome"] for row in rows] == ["not shown", "does not fit", "given up", "not shown"]
    assert [row["difference, points"] for row in rows] == ["+1.00", None, "-9.67", "+10.33"]
    assert rows[-1]["module"] == "mine.py:Gate"
    assert (rows[-1]["sites"], rows[-1]["ahead"], rows[-1]["time"]) == (ENDS, "3 of 3", "x1.50")
    assert "plain: 60.00 % in 3 runs" in table.notes
    assert "timm:se does not fit, and is not trained: is odd" in table.notes
    assert any("3 seeds can show no row as better or worse; give --seeds 8" in note for note in table.notes)

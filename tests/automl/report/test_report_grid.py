"""The table of a grid has every cell with its runs, mean and deviation, or the word for what happened."""

from pathlib import Path
from typing import Any

import optuna
import pytest

from automl.report.grid_table import outcome
from automl.report.read import SearchData, read_search
from automl.tasks.detection import BOX_AP
from search.config import TrialConfig
from search.grid import grid_cells
from search.record import State, TrialRecord
from search.space import load_space
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


@pytest.mark.parametrize(
    ("state", "reason", "word"),
    [
        (State.COMPLETE, None, "trained"),
        (State.INFEASIBLE, NAN, "diverged"),
        (State.INFEASIBLE, "out of memory: OutOfMemoryError: CUDA out of memory.", "did not fit in memory"),
        (State.ERROR, "its machine was low on memory, so Ray ended it", "did not fit in memory"),
        (State.INFEASIBLE, f"params 5M exceeds the limit of 4M; {OVER}", "over a limit (params, memory)"),
        (State.INFEASIBLE, "too slow for this budget: 3 of 10 steps", "too slow for the epochs"),
        (State.ERROR, "RuntimeError: no", "error"),
        (State.RUNNING, None, "not finished"),
    ],
)
def test_outcome_of_a_run_is_short(state: State, reason: str | None, word: str) -> None:
    assert outcome(TrialRecord(0, TrialConfig(), state=state, reason=reason)) == word

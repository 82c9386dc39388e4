"""The result of a search."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from automl_cases import Regression, opened

from automl.base.serialise import to_json
from automl.config.settings import Settings
from automl.search.prepare import make_plan
from automl.search.result import SearchResult, make_result
from automl.tracking.run_spec import flat
from search.class_metrics import ACCURACY
from search.config import TrialConfig
from search.record import Role, State, TrialRecord
from search.trial_scheduler import Plan


def result(values: list[float], guess: float | None, state: State = State.COMPLETE) -> SearchResult:
    plan = Plan(trials=9, budget=1, metric=ACCURACY, objectives=["accuracy"], guessing=guess)
    records = {
        i: TrialRecord(
            i,
            TrialConfig(),
            Role.BASELINE,
            state,
            [{"epoch": 1, "accuracy": value, "seconds": 1.0, "steps": 84}],
        )
        for i, value in enumerate(values)
    }
    scheduler: Any = SimpleNamespace(plan=plan, records=records, decided="")
    return make_result(
        "folder",
        "mine",
        scheduler,
        settings=Settings(space="digits"),
        runs={0: "abc"},
        begun=0,
        untracked=0,
        page="",
        devices=1,
    )  # type: ignore[arg-type]


def test_search_at_chance_level_warns() -> None:
    (warning,) = result([0.10, 0.14], 0.155).warnings
    assert warning.startswith("train longer (--epochs)")
    assert "no trial beats chance. The best validation accuracy is 0.140" in warning
    assert warning.endswith("guessing may reach 0.155")


@pytest.mark.parametrize(
    ("values", "guess", "state"),
    [
        ([0.1, 0.2], 0.155, State.COMPLETE),
        ([0.1], None, State.COMPLETE),
        ([0.1], 0.155, State.PRUNED),
        ([], 0.155, State.COMPLETE),
    ],
)
def test_otherwise_it_does_not(values: list[float], guess: float | None, state: State) -> None:
    assert result(values, guess, state).warnings == []


def test_plan_has_the_score_of_guessing() -> None:
    task = opened()
    plan = make_plan(Settings(space="digits"), task.config, task)
    chance, inputs = task.chance("validation"), task.size("validation")
    assert chance is not None
    assert plan.guessing == ACCURACY.guessing(chance, inputs)
    assert 0.1 < chance.value < plan.guessing < 0.5
    line = Regression()
    assert make_plan(Settings(space="digits"), line.config, line).guessing is None


def test_repr_of_a_result() -> None:
    summary = result([0.8, 0.9], None)
    assert repr(summary).splitlines() == [
        "search    mine",
        "space     digits",
        "trials    2: 2 completed",
        "best      accuracy 0.9000 after 84 steps, trial 1: no attention",
        "baseline  accuracy 0.9000 after 84 steps, trial 1: no attention",
        "folder    folder",
        "next      automl.run_confirm('mine')",
    ]
    html = summary._repr_html_()
    assert html.count("<tr>") == 7
    assert ">automl.run_confirm(&#x27;mine&#x27;)<" in html
    assert "no trial completed" in repr(result([0.8], None, State.PRUNED))


def test_its_trials_are_a_table() -> None:
    summary = result([0.8, 0.9], None)
    table = summary.trials
    assert list(table.number) == [0, 1]
    assert list(table.accuracy) == [0.8, 0.9]
    shown = ["state", "role", "placement", "epochs_done", "steps", "seconds", "run_id"]
    assert table.loc[0, shown].to_dict() == {
        "state": "complete", "role": "baseline", "placement": "plain", "epochs_done": 1, "steps": 84,
        "seconds": 1.0, "run_id": "abc",
    }  # fmt: skip
    assert set(flat(TrialConfig())) < set(table.columns)
    assert to_json(summary)["trials"] == 2
    assert json.dumps(to_json(summary))
    assert result([0.8], None, State.INFEASIBLE).trials.accuracy[0] == 0.8

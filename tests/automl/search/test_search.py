"""The result of a search."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import automl
from automl.base.serialise import to_json, write_json
from automl.config.nouns import Question, SearchPlan
from automl.config.settings import Settings
from automl.search.prepare import make_plan
from automl.search.result import RESULT_FILE
from automl.search.run_search import EXPORTS, Search, load
from automl.storage.folder import new_folder
from automl.tasks.language_modelling import LanguageData, LanguageModel
from automl.tracking.run_spec import flat
from search.class_metrics import ACCURACY
from search.config import Model, TrialConfig
from search.metric import Metric
from search.record import Role, State, TrialRecord
from search.trial_scheduler import Plan
from tests.helpers.automl_cases import Regression, opened
from tests.helpers.confirm_cases import fake_search

Result = Callable[..., Search]


@pytest.fixture
def result(tmp_path: Path) -> Result:
    """Return a function that writes a search of baselines with these scores, and loads it."""

    def result(
        values: list[float],
        guess: float | None,
        state: State = State.COMPLETE,
        learned: float = 0.2,
        backbone: str = "xresnet18",
    ) -> Search:
        plan = Plan(trials=9, budget=1, metric=ACCURACY, guessing=guess)
        settings = Settings(
            space="digits", name=f"mine-{len(list(tmp_path.iterdir()))}", storage=str(tmp_path)
        ).parsed
        with new_folder(settings, plan, fingerprint="", data="") as (folder, metadata):
            trials = [
                TrialRecord(
                    i,
                    TrialConfig(model=Model(backbone=backbone)),
                    Role.BASELINE,
                    state,
                    [
                        {
                            "epoch": 1,
                            "resource": 1.0,
                            "accuracy": value,
                            "train_accuracy": learned,
                            "seconds": 1.0,
                            "steps": 84,
                        }
                    ],
                )
                for i, value in enumerate(values)
            ]
            return Search(folder=folder, metadata=metadata, trials=trials, runs={0: "abc"})

    return result


def test_chance_and_loss_give_warnings(result: Result) -> None:
    (warning,) = result([0.10, 0.14], 0.155).warnings
    assert warning.startswith("train longer (--epochs)")
    assert "no trial beats chance. The best validation accuracy is 14 %" in warning
    assert warning.endswith("guessing may reach 15.5 %")
    search = result([2.4], 2.3, learned=0.0)
    loss = Metric(name="loss", maximize=False)
    plan = replace(search.plan, metric=loss)
    for trial in search.trials:
        trial.history[-1].update({"loss": 2.4, "train_loss": 2.2})
    (warning,) = replace(search, metadata=replace(search.metadata, plan=plan)).warnings
    assert warning.startswith("train longer")


def test_memorised_data_are_not_a_short_training(result: Result) -> None:
    (warning,) = result([0.10, 0.14], 0.155, learned=0.98).warnings
    assert warning.startswith("the training data are memorised: accuracy is 98 % on them and at most 14 %")
    assert "train longer" not in warning


@pytest.mark.parametrize(
    ("values", "guess", "state"),
    [
        ([0.1, 0.2], 0.155, State.COMPLETE),
        ([0.1], None, State.COMPLETE),
        ([0.1], 0.155, State.PRUNED),
        ([], 0.155, State.COMPLETE),
    ],
)
def test_otherwise_it_does_not(
    result: Result, values: list[float], guess: float | None, state: State
) -> None:
    assert result(values, guess, state).warnings == []


def test_plan_has_the_score_of_guessing() -> None:
    task = opened()
    plan = make_plan(SearchPlan(), Question(space="digits"), task)
    chance, inputs = task.chance("validation"), task.size("validation")
    assert plan.guessing == ACCURACY.guessing(chance, inputs)
    assert 0.1 < chance.value < plan.guessing < 0.5
    line = Regression()
    assert make_plan(SearchPlan(), Question(space="digits"), line).guessing is None


def test_a_result_shows_itself_and_its_trials(result: Result) -> None:
    summary = result([0.8, 0.9], None)
    assert "best      accuracy 90 % after 84 steps, trial 1: no attention" in repr(summary).splitlines()
    html = summary._repr_html_()
    assert html.count("<tr>") == 7
    assert ".confirm()<" in html
    assert "no trial completed" in repr(result([0.8], None, State.PRUNED))
    summary = result([0.8, 0.9], None)
    table = summary.trials_dataframe()
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
    assert result([0.8], None, State.INFEASIBLE).trials_dataframe().accuracy[0] == 0.8
    search = result([0.8, 0.9, 0.7], None)
    placements = ({}, {"block1.mixer": "linear"}, {"block2.mixer": "linear"})
    for trial, placement in zip(search.trials, placements, strict=True):
        model = LanguageModel(options={"depth": 3}, placement=placement)
        trial.config = TrialConfig(task="language-modelling", data=LanguageData(), model=model)
    assert [getattr(search.best_with_full(full), "number", None) for full in (3, 2, 1)] == [0, 1, None]


def test_a_loaded_search_is_the_one_that_was_run(tmp_path: Path) -> None:
    folder = fake_search(tmp_path)
    search = load("mine", storage=tmp_path)
    write_json(folder / RESULT_FILE, replace(search, seconds=3.5, devices=2.0, page="http://mlflow/"))
    again = load(search)
    assert (again.seconds, again.devices, again.page) == (3.5, 2.0, "http://mlflow/")
    assert again.to_json() == json.loads((folder / RESULT_FILE).read_text())
    assert again.hours == 2 * search.hours > 0
    (folder / RESULT_FILE).write_text("{")
    assert load(search).seconds == 0, "the study is the record"


def test_its_methods_are_the_functions_of_the_api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: dict[str, tuple[object, ...]] = {}

    def function(name: str) -> Callable[..., None]:
        return lambda *arguments, **options: calls.update({name: (*arguments, options)})

    for name in (
        "run_confirm", "run_report", "run_export", "run_predict", "run_search", "run_sync"
    ):  # fmt: skip
        monkeypatch.setattr(f"{getattr(automl, name).__module__}.{name}", function(name))
    fake_search(tmp_path)
    search = load("mine", storage=tmp_path)
    search.confirm(top=1)
    search.report()
    search.resume(trials="+2")
    search.predict(["seven.png"], trust=True)
    assert search.status().state == "stopped"
    search.sync()
    assert calls == {
        "run_sync": (search, {}),
        "run_confirm": (search, {"top": 1}),
        "run_report": (search, {}),
        "run_search": ({"resume": search, "trials": "+2"},),
        "run_export": (EXPORTS / "mine", {"best": True, "baseline": False, "search": search, "trust": True}),
        "run_predict": (EXPORTS / "mine", ["seven.png"], {"trust": True}),
    }

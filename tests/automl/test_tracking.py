import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from attention import InputError, Spec
from automl import tracking
from automl.tracking import BEST, CHECKPOINT, SEARCH, Tracker, find_best, find_run, flat
from search.config import Model, TrialConfig
from search.record import State, TrialRecord

PLACEMENT = {"stage1.block2.branch": Spec("ssa", {"ks": 3}), "stage2.block1": Spec("sagan")}


def trial(number: int = 0, **model: Any) -> TrialRecord:
    return TrialRecord(number, TrialConfig(model=Model(**model)))


def live(
    tracker: Tracker, record: TrialRecord, state: State, values: list[float], reason: str | None = None
) -> None:
    """A trial from its start to its end, with a metric an epoch and a checkpoint if it learned at all."""
    tracker.started(record)
    for epoch, value in enumerate(values, start=1):
        record.history.append({"epoch": epoch, "accuracy": value, "loss": 1 - value})
        tracker.reported(record)
    record.state, record.reason = state, reason
    tracker.ended(record)
    if values:
        record.checkpoint = f"/checkpoints/{record.number}"
        tracker.saved(record)


def searched(name: str, values: list[float], store: MlflowClient) -> Tracker:
    """A search of one trial for each value."""
    tracker = Tracker(experiment="space", search=name)
    records = [trial(i) for i in range(len(values))]
    for record, value in zip(records, values, strict=True):
        live(tracker, record, State.COMPLETE, [value])
    best = max(records, key=lambda r: r.history[-1]["accuracy"]) if records else None
    tracker.finish(best=best, metric="accuracy", counts={State.COMPLETE: len(values)})
    return tracker


def run_of(tracker: Tracker, number: int, store: MlflowClient) -> Run:
    return store.get_run(tracker.runs[number])


def test_a_search_is_a_run_with_a_run_for_each_trial(store: MlflowClient) -> None:
    tracker = Tracker(experiment="space", search="mine", about={"trials": 2, "seed": 0})
    first, second = trial(0), trial(1, placement=PLACEMENT)
    live(tracker, first, State.COMPLETE, [0.5, 0.75])
    live(tracker, second, State.COMPLETE, [0.25])
    tracker.finish(best=first, metric="accuracy", counts={State.COMPLETE: 2})

    experiment = store.get_experiment_by_name("space")
    runs = store.search_runs([experiment.experiment_id])
    parent = store.get_run(tracker.parent)
    assert len(runs) == 3
    assert parent.info.run_name == "mine"
    assert parent.info.status == "FINISHED"
    assert parent.data.params == {"trials": "2", "seed": "0"}
    assert parent.data.metrics == {
        "complete": 2, "pruned": 0, "infeasible": 0, "error": 0, "best_accuracy": 0.75
    }  # fmt: skip
    assert parent.data.tags.items() >= {
        SEARCH: "mine", BEST: tracker.runs[0], "state": "complete"
    }.items()  # fmt: skip
    for number, record in enumerate((first, second)):
        run = run_of(tracker, number, store)
        assert run.data.tags["mlflow.parentRunId"] == tracker.parent
        assert run.info.run_name == record.name
    assert tracker.lost == 0


def test_what_a_trials_run_holds(store: MlflowClient) -> None:
    tracker = Tracker(experiment="space", search="mine")
    record = trial(1, placement=PLACEMENT)
    live(tracker, record, State.COMPLETE, [0.5, 0.75, 0.625])
    run = run_of(tracker, 1, store)
    history = store.get_metric_history(run.info.run_id, "accuracy")
    assert [(metric.step, metric.value) for metric in history] == [(1, 0.5), (2, 0.75), (3, 0.625)]
    assert run.data.metrics.keys() == {"accuracy", "loss"}
    assert run.data.params.keys() == flat(record.config).keys()
    assert (
        run.data.params.items()
        >= {
            "backbone": "xresnet18",
            "modules": "2",
            "types": "ssa + sagan",
            "sites": "stage1.block2.branch + stage2.block1",
            "learning_rate": "0.003",
            "seed": "0",
        }.items()
    )
    assert run.data.tags[CHECKPOINT] == "/checkpoints/1"
    file = store.download_artifacts(run.info.run_id, "config.json")
    assert TrialConfig.from_json(json.loads(Path(file).read_text())) == record.config


@pytest.mark.parametrize(
    ("state", "status", "reason"),
    [
        (State.COMPLETE, "FINISHED", None),
        (State.PRUNED, "KILLED", None),
        (State.INFEASIBLE, "KILLED", "out of memory"),
        (State.ERROR, "FAILED", "ValueError: no"),
    ],
)
def test_how_a_trial_ended(state: State, status: str, reason: str | None, store: MlflowClient) -> None:
    tracker = Tracker(experiment="space", search="mine")
    record = trial()
    tracker.started(record)
    assert run_of(tracker, 0, store).data.tags["state"] == "running"
    record.state, record.reason = state, reason
    tracker.ended(record)
    run = run_of(tracker, 0, store)
    assert (run.info.status, run.data.tags["state"]) == (status, state)
    assert run.data.tags.get("reason") == reason


def test_every_state_has_an_end() -> None:
    assert tracking._ENDS.keys() == set(State) - {State.RUNNING}


def test_finish_ends_what_is_still_running(store: MlflowClient) -> None:
    tracker = Tracker(experiment="space", search="mine")
    live(tracker, trial(0), State.PRUNED, [0.5])
    tracker.started(trial(1))
    tracker.finish(best=None, metric="accuracy", counts={State.PRUNED: 1})
    running, parent = run_of(tracker, 1, store), store.get_run(tracker.parent)
    assert (running.info.status, running.data.tags["state"]) == ("KILLED", "stopped")
    assert run_of(tracker, 0, store).data.tags["state"] == "pruned"
    assert (parent.info.status, parent.data.tags["state"]) == ("FAILED", "error")
    assert BEST not in parent.data.tags
    assert parent.data.metrics["pruned"] == 1


def test_without_a_search_a_run_has_no_parent(store: MlflowClient) -> None:
    tracker = Tracker(experiment="train")
    live(tracker, trial(), State.COMPLETE, [0.5])
    assert "mlflow.parentRunId" not in run_of(tracker, 0, store).data.tags


def test_searches_of_a_space_share_an_experiment(store: MlflowClient) -> None:
    first, second = Tracker(experiment="space", search="a"), Tracker(experiment="space", search="b")
    assert first.experiment == second.experiment
    assert first.parent != second.parent


@pytest.mark.parametrize(
    "method", ["create_run", "log_batch", "log_dict", "set_tag", "set_terminated", "log_metric"]
)
def test_a_store_that_fails_does_not_stop_a_search(
    method: str, store: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = Tracker(experiment="space", search="mine")
    calls = 0

    def fail(*args: Any, **kwargs: Any) -> None:
        nonlocal calls
        calls += 1
        raise ConnectionError("the server went away")

    monkeypatch.setattr(tracker.client, method, fail)
    record = trial()
    live(tracker, record, State.COMPLETE, [0.5, 0.75])
    tracker.started(trial(1))
    tracker.finish(best=record, metric="accuracy", counts={State.COMPLETE: 1})
    assert tracker.lost == calls > 0


def test_a_server_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    for ask in (lambda: Tracker(experiment="x"), lambda: find_best(None), lambda: find_run("a")):
        with pytest.raises(
            InputError, match=r"MLflow at http://127.0.0.1:9 does not answer.*MLFLOW_TRACKING_URI"
        ):
            ask()


def test_best_of_a_search_and_of_the_latest(store: MlflowClient) -> None:
    older, newer = searched("older", [0.5, 0.75], store), searched("newer", [0.5, 0.25], store)
    found = find_best("older")
    assert (found.run_id, found.checkpoint) == (older.runs[1], Path("/checkpoints/1/checkpoint.pt"))
    assert found.name == trial(1).name
    assert find_best(None).run_id == newer.runs[0]
    searched("latest, without a trial that was trained", [], store)
    assert find_best(None).run_id == newer.runs[0]


Find = Callable[[MlflowClient], object]


@pytest.mark.parametrize(
    ("find", "message"),
    [
        (lambda store: find_best(None), "MLflow has no search to export from; run `automl search`"),
        (lambda store: find_best("mine"), "MLflow has no search called 'mine'"),
        (lambda store: find_best("o'clock"), "MLflow has no search called"),
        (lambda store: (searched("mine", [], store), find_best("mine")), "search 'mine' has no trial"),
        (lambda store: find_run("abc"), "MLflow has no run 'abc'"),
        (lambda store: find_run(""), "MLflow has no run ''"),
        (lambda store: find_run("a/../b"), "MLflow has no run 'a/../b'"),
        (
            lambda store: find_run(searched("mine", [], store).parent or ""),
            r"run \w+ \(mine\) has no checkpoint; choose a trial that was trained",
        ),
    ],
)
def test_what_cannot_be_found(find: Find, message: str, store: MlflowClient) -> None:
    with pytest.raises(InputError, match=message):
        find(store)

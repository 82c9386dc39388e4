import json
import threading
from pathlib import Path
from typing import Any

import optuna
import pytest
from mlflow import MlflowClient
from mlflow.entities import Run
from optuna.study import StudyDirection

from attention import Spec
from automl.base.errors import InputError
from automl.base.serialise import write_json
from automl.config.settings import Settings
from automl.export.chosen import choose_run
from automl.search.driver import run_sync
from automl.storage.folder import new_folder
from automl.storage.storage import Storage
from automl.storage.trial_files import ORIGINAL_FILE, Original, original_records
from automl.tracking import tracker as tracking
from automl.tracking.run_spec import (
    BEST,
    CHECKPOINT,
    COMMIT,
    PROFILE,
    SEARCH,
    TRIAL,
    RunSpec,
    flat,
    named,
    run_name,
    search_run_spec,
)
from automl.tracking.runs import find_trial_run
from automl.tracking.tracker import Tracker
from automl.tracking.writer import MlflowWriter
from search.class_metrics import ACCURACY
from search.config import Model, TrialConfig
from search.record import CHECKPOINT_FILE, Report, State, TrialRecord
from search.search_scheduler import SearchScheduler
from search.space import SPACES
from search.study import create_study
from search.trial_scheduler import Plan

PLACEMENT = {"stage1.block2.branch": Spec("ssa", {"ks": 3}), "stage2.block1": Spec("sagan")}


def trial(number: int = 0, **model: Any) -> TrialRecord:
    return TrialRecord(number, TrialConfig(model=Model(**model)))


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "PAUSE", (0.01, 0.02))


def make(folder: Path | None = None, search: str | None = "mine", identity: str = "", **more: Any) -> Tracker:
    """A tracker whose trials have their checkpoints in `folder`."""
    folder = folder or Path("checkpoints")
    run_spec = RunSpec(
        experiment="space",
        name=search,
        tags={SEARCH: search} if search else {},
        identity=identity,
        checkpoint=lambda record: Storage(folder / f"{record.number}"),
        **more,
    )
    return Tracker(MlflowWriter(run_spec))


def live(
    tracker: Tracker, record: TrialRecord, state: State, values: list[float], reason: str | None = None
) -> None:
    """A trial from its start to its end, with a metric an epoch and a checkpoint if it learned at all."""
    tracker.on_trial_start(record)
    learn(tracker, record, values)
    record.state, record.reason = state, reason
    tracker.on_trial_end(record)


def learn(tracker: Tracker, record: TrialRecord, values: list[float], parts: int = 1) -> None:
    for value in values:
        step = len(record.history) + 1
        metrics = {"epoch": step / parts, "accuracy": value, "loss": 1 - value, "time": 1e9 + step}
        record.history.append(metrics)
        tracker.writer.run_spec.checkpoint(record).write(CHECKPOINT_FILE, b"")
        tracker.on_epoch_end(record)


def searched(name: str, values: list[float], store: MlflowClient) -> Tracker:
    """A search of one trial for each value."""
    tracker = make(search=name, identity=f"{name}-id")
    records = [trial(i) for i in range(len(values))]
    for record, value in zip(records, values, strict=True):
        live(tracker, record, State.COMPLETE, [value])
    best = max(records, key=lambda r: r.history[-1]["accuracy"]) if records else None
    tracker.finish(best=best, metric="accuracy", counts={State.COMPLETE: len(values)})
    return tracker


def steps(store: MlflowClient, run_id: str, metric: str = "accuracy") -> list[tuple[int, float]]:
    return [(m.step, m.value) for m in store.get_metric_history(run_id, metric)]


def children(store: MlflowClient, tracker: Tracker) -> list[Run]:
    return store.search_runs(
        [tracker.writer.experiment], f"tags.`mlflow.parentRunId` = '{tracker.writer.parent}'"
    )


def run_of(tracker: Tracker, number: int, store: MlflowClient) -> Run:
    return store.get_run(tracker.runs[number])


def test_the_original_is_a_run_beside_those_of_the_trials(store: MlflowClient, tmp_path: Path) -> None:
    original = Original(scores={"accuracy": 0.8}, costs={"params": 2e6, "memory": 4e6}, device="core")
    write_json(tmp_path / ORIGINAL_FILE, original)
    for _ in range(2):  # a search, and its resumption
        tracker, record = make(identity="mine-id"), trial(0, placement=PLACEMENT)
        live(tracker, record, State.COMPLETE, [0.5])
        for each in original_records(tmp_path, record.config):
            tracker.update(each)
        assert tracker.finish(best=record, metric="accuracy", counts={State.COMPLETE: 1}) == 0
    runs = {run.data.tags["role"]: run for run in children(store, tracker)}
    assert (len(children(store, tracker)), runs.keys()) == (2, {"candidate", "original"})
    run = runs["original"]
    assert (run.data.metrics["accuracy"], run.data.metrics["memory_mb"]) == (0.8, 4)
    assert (run.data.params["modules"], run.info.status, run.info.run_name) == (
        "0",
        "FINISHED",
        "original seed 0",
    )


def test_a_search_is_a_run_with_a_run_for_each_trial(store: MlflowClient, tmp_path: Path) -> None:
    tracker = make(params={"trials": 2, "seed": 0})
    first, second = trial(0), trial(1, placement=PLACEMENT)
    live(tracker, first, State.COMPLETE, [0.5, 0.75])
    live(tracker, second, State.COMPLETE, [0.25])
    assert tracker.finish(best=first, metric="accuracy", counts={State.COMPLETE: 2}) == 0
    experiment = store.get_experiment_by_name("space")
    runs = store.search_runs([experiment.experiment_id])
    parent = store.get_run(tracker.writer.parent)
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
        assert run.data.tags["mlflow.parentRunId"] == tracker.writer.parent
        assert run.info.run_name == run_name(record)
    tracker = make(data="d1", source={COMMIT: "abc"})
    record = trial(1, placement=PLACEMENT)
    record.profile = {"params": 4.0, "time_ratio": 1.25}
    live(tracker, record, State.COMPLETE, [0.5, 0.75, 0.625])
    assert tracker.drain() == 0
    run = run_of(tracker, 1, store)
    assert steps(store, run.info.run_id) == [(1, 0.5), (2, 0.75), (3, 0.625)]
    times = [m.timestamp for m in store.get_metric_history(run.info.run_id, "accuracy")]
    assert times == [int(1e12) + 1000 * i for i in (1, 2, 3)], "of the training, not of the writing"
    assert steps(store, run.info.run_id, "time_ratio") == [(0, 1.25)]
    assert run.data.metrics.keys() == {"epochs_done", "accuracy", "loss", "params", "time_ratio"}
    assert {(dataset.dataset.name, dataset.dataset.digest, dataset.dataset.source, dataset.tags[0].value)
            for dataset in run.inputs.dataset_inputs} == {
        (f"digits {split}", "d1", '{"source": "digits"}', split) for split in ("training", "validation")
    }  # fmt: skip
    assert run.data.tags[COMMIT] == "abc"
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
    assert run.data.tags[CHECKPOINT] == str(tmp_path / "checkpoints" / "1")
    file = store.download_artifacts(run.info.run_id, "config.json")
    assert TrialConfig.from_json(json.loads(Path(file).read_text())) == record.config


@pytest.mark.parametrize(
    ("state", "status", "reason"),
    [
        (State.COMPLETE, "FINISHED", None),
        (State.PRUNED, "KILLED", None),
        (State.INFEASIBLE, "FAILED", "out of memory"),
        (State.ERROR, "FAILED", "ValueError: no"),
    ],
)
def test_state_of_a_trial(state: State, status: str, reason: str | None, store: MlflowClient) -> None:
    tracker = make()
    record = trial()
    tracker.on_trial_start(record)
    assert tracker.drain() == 0
    assert run_of(tracker, 0, store).data.tags["state"] == "running"
    record.state, record.reason = state, reason
    record.profile = {"params": 4.0}
    tracker.on_trial_end(record)
    assert tracker.drain() == 0
    run = run_of(tracker, 0, store)
    assert (run.info.status, run.data.tags["state"]) == (status, state)
    assert run.data.tags.get("reason") == reason
    assert run.data.metrics == {"params": 4.0}, "what was measured, of one that never learned"
    assert CHECKPOINT not in run.data.tags


def test_running_runs_end(store: MlflowClient) -> None:
    tracker = make()
    live(tracker, trial(0), State.PRUNED, [0.5])
    tracker.on_trial_start(trial(1))
    tracker.finish(best=None, metric="accuracy", counts={State.PRUNED: 1})
    running, parent = run_of(tracker, 1, store), store.get_run(tracker.writer.parent)
    assert (running.info.status, running.data.tags["state"]) == ("KILLED", "stopped")
    assert run_of(tracker, 0, store).data.tags["state"] == "pruned"
    assert (parent.info.status, parent.data.tags["state"]) == ("FAILED", "error")
    assert BEST not in parent.data.tags
    assert parent.data.metrics["pruned"] == 1
    tracker = make()
    done = trial(0)
    live(tracker, done, State.COMPLETE, [0.5])
    tracker.on_trial_start(trial(1))
    tracker.finish(best=done, metric="accuracy", counts={State.COMPLETE: 1}, stopped=True)
    for run in (run_of(tracker, 1, store), store.get_run(tracker.writer.parent)):
        assert (run.info.status, run.data.tags["state"]) == ("KILLED", "stopped")


def test_runs_belong_to_their_experiment(store: MlflowClient) -> None:
    tracker = make(search=None)
    live(tracker, trial(), State.COMPLETE, [0.5])
    assert tracker.close() == 0
    assert "mlflow.parentRunId" not in run_of(tracker, 0, store).data.tags
    writers = [make(search=name, identity=identity).writer for name, identity in ("a1", "a2", "b3")]
    assert len({writer.experiment for writer in writers}) == 1
    assert len({writer.parent for writer in writers}) == 3, "also if two have the same name"
    older, newer = searched("older", [0.5, 0.75], store), searched("newer", [0.5], store)
    assert find_trial_run("older-id", 1) == older.runs[1]
    assert find_trial_run("newer-id", 0) == newer.runs[0]
    for identity, number in (("older-id", 2), ("newer-id", 1), ("unknown", 0)):
        with pytest.raises(InputError, match=r"MLflow at sqlite:.* has no run of it"):
            find_trial_run(identity, number)


METHODS = ["create_run", "log_batch", "log_dict", "set_tag", "set_terminated"]


def failing(client: Any, method: str, calls: int, *, taken: bool) -> Any:
    """The client's method that fails so often, before or after the server has `taken` it."""
    original = getattr(client, method)
    left = calls

    def fail(*args: Any, **kwargs: Any) -> Any:
        nonlocal left
        if left == 0:
            return original(*args, **kwargs)
        left -= 1
        if taken:
            original(*args, **kwargs)
        raise ConnectionError("the server went away")

    return fail


@pytest.mark.parametrize("taken", [False, True], ids=["lost", "taken"])
@pytest.mark.parametrize("method", METHODS)
def test_failed_writes_are_repeated(
    method: str, taken: bool, store: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = make()
    monkeypatch.setattr(tracker.writer.client, method, failing(tracker.writer.client, method, 3, taken=taken))
    first, second = trial(0), trial(1, placement=PLACEMENT)
    live(tracker, first, State.COMPLETE, [0.5, 0.75])
    live(tracker, second, State.PRUNED, [0.25])
    counts = {State.COMPLETE: 1, State.PRUNED: 1}
    assert tracker.drain() == 0
    assert tracker.finish(best=first, metric="accuracy", counts=counts) == 0
    runs = {run.data.tags[TRIAL]: run for run in children(store, tracker)}
    assert len(children(store, tracker)) == len(runs) == 2, "no run twice"
    assert steps(store, runs["0"].info.run_id) == [(1, 0.5), (2, 0.75)], "no step twice"
    assert steps(store, runs["1"].info.run_id) == [(1, 0.25)]
    for number, (record, status) in {"0": (first, "FINISHED"), "1": (second, "KILLED")}.items():
        run = runs[number]
        assert (run.info.status, run.data.tags["state"]) == (status, record.state)
        assert run.data.params.keys() == flat(record.config).keys()
        assert run.data.tags[CHECKPOINT].endswith(f"checkpoints/{number}")
        file = store.download_artifacts(run.info.run_id, "config.json")
        assert TrialConfig.from_json(json.loads(Path(file).read_text())) == record.config


@pytest.mark.parametrize("method", METHODS)
def test_a_store_that_stays_away_does_not_stop_a_search(
    method: str, store: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = make(identity="it")
    with monkeypatch.context() as patch:
        patch.setattr(tracker.writer.client, method, failing(tracker.writer.client, method, -1, taken=False))
        record = trial()
        live(tracker, record, State.COMPLETE, [0.5, 0.75])
        taken = method == "set_tag"  # a trial's tags come with its numbers
        assert tracker.drain(30 if taken else 0.1) == (not taken)
        counts = {State.COMPLETE: 1}
        assert tracker.finish(best=record, metric="accuracy", counts=counts, patience=0.1) == 1
    again = make(identity="it")
    again.update(record)
    assert again.finish(best=record, metric="accuracy", counts=counts) == 0
    (run,) = children(store, again)
    assert (run.info.status, run.data.tags["state"]) == ("FINISHED", "complete")
    assert steps(store, run.info.run_id) == [(1, 0.5), (2, 0.75)]
    assert store.get_run(again.writer.parent).data.tags[BEST] == run.info.run_id


def test_a_second_tracker_continues_the_runs_of_the_first(store: MlflowClient) -> None:
    first = make(identity="it", params={"seed": 0})
    done, open_, unseen = trial(0), trial(1), trial(2)
    live(first, done, State.COMPLETE, [0.5])
    first.on_trial_start(open_)
    learn(first, open_, [0.25], 4)
    first.finish(best=done, metric="accuracy", counts={State.COMPLETE: 1}, stopped=True)
    learn(first, open_, [0.375], 4)  # nothing listens any more

    second = make(identity="it", params={"seed": 0})
    assert second.writer.parent == first.writer.parent
    assert second.runs == first.runs
    assert store.get_run(second.writer.parent).info.status == "RUNNING"
    assert run_of(second, 1, store).info.status == "RUNNING"
    for record in (done, open_):
        second.update(record)
    live(second, unseen, State.PRUNED, [0.125])
    learn(second, open_, [0.75], 4)
    open_.state = State.COMPLETE
    second.on_trial_end(open_)
    assert second.finish(best=open_, metric="accuracy", counts={State.COMPLETE: 2, State.PRUNED: 1}) == 0

    assert len(children(store, second)) == 3
    assert steps(store, second.runs[0]) == [(1, 0.5)]
    assert steps(store, second.runs[1]) == [(1, 0.25), (2, 0.375), (3, 0.75)]
    assert [epoch for _, epoch in steps(store, second.runs[1], "epochs_done")] == [0.25, 0.5, 0.75]
    run, parent = run_of(second, 1, store), store.get_run(second.writer.parent)
    assert (run.info.status, run.data.tags["state"]) == ("FINISHED", "complete")
    assert (parent.info.status, parent.data.tags["state"]) == ("FINISHED", "complete")
    assert parent.data.metrics["best_accuracy"] == 0.75
    assert parent.data.tags[BEST] == second.runs[1]


def test_training_never_waits(store: MlflowClient, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = make()
    answer = threading.Event()
    original = tracker.writer.client.create_run
    monkeypatch.setattr(
        tracker.writer.client, "create_run", lambda *a, **k: (answer.wait(60), original(*a, **k))[1]
    )
    for number in range(5):
        live(tracker, trial(number), State.COMPLETE, [0.5])
    assert tracker.drain(0.05) == 5
    answer.set()
    assert tracker.drain() == 0
    assert len(tracker.runs) == 5


def test_sync_brings_mlflow_to_where_the_study_stands(store: MlflowClient, tmp_path: Path) -> None:
    plan = Plan(trials=3, budget=2, metric=ACCURACY)
    settings = Settings(space="digits", name="mine", storage=str(tmp_path)).parsed
    with new_folder(settings, plan, fingerprint="f", data="d") as (folder, metadata):
        study = create_study(folder, name="mine", direction=StudyDirection.MAXIMIZE)
        sampler = optuna.samplers.RandomSampler(seed=0)
        scheduler = SearchScheduler(study, SPACES["digits"], plan, sampler)
        for number, score in enumerate([0.5, 0.75]):
            assert scheduler.ask() is not None
            history = [{"epoch": i, "resource": i, "accuracy": score} for i in (1, 2)]
            scheduler.end(number, Report(history=history, profile={"time_ratio": 1.0}, finished=True))
        assert scheduler.ask() is not None  # and is still open
    for _ in range(2):  # the second time there is nothing left to do
        assert run_sync("mine", str(tmp_path)) == 3
        parent = store.search_runs(
            [store.get_experiment_by_name("digits").experiment_id], f"tags.`{SEARCH}` = 'mine'"
        )
        assert len(parent) == 1
        tracker = Tracker(MlflowWriter(search_run_spec(metadata.location, metadata)))
        tracker.close()
        runs = {run.data.tags[TRIAL]: run for run in children(store, tracker)}
        assert len(children(store, tracker)) == 3
        assert steps(store, runs["1"].info.run_id) == [(1, 0.75), (2, 0.75)]
        assert steps(store, runs["1"].info.run_id, "time_ratio") == [(0, 1.0)]
        assert parent[0].data.tags[BEST] == runs["1"].info.run_id
        assert parent[0].data.tags["state"] == "stopped"


def test_many_epochs_and_the_checkpoint_are_in_runs(store: MlflowClient, tmp_path: Path) -> None:
    tracker = make()
    record = trial()
    for epoch in range(1, 301):
        record.history.append({"epoch": epoch, **{f"metric{i}": 0.5 for i in range(9)}})
    tracker.update(record)
    assert tracker.drain() == 0
    assert len(steps(store, tracker.runs[0], "metric8")) == 300
    tracker = make(tmp_path)
    record = trial()
    live(tracker, record, State.COMPLETE, [0.5])
    assert tracker.drain() == 0
    assert choose_run(tracker.runs[0]).checkpoint == Storage(tmp_path / "0")
    (tmp_path / "0" / CHECKPOINT_FILE).unlink()
    tracker.update(record)
    assert tracker.drain() == 0
    with pytest.raises(InputError, match=r"has no checkpoint: .*--keep"):
        choose_run(tracker.runs[0])
    assert run_of(tracker, 0, store).data.tags["state"] == "complete"


def test_memory_is_in_megabytes() -> None:
    assert named({"memory": 3e6}, PROFILE) == {"memory_mb": 3.0}

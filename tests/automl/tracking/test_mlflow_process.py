import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
import pytest
from mlflow import MlflowClient

from automl.base.errors import InputError
from automl.storage.storage import Storage
from automl.tracking.client import open_client
from automl.tracking.process import _IDLE, MlflowProcess, prepared
from automl.tracking.run_spec import BEST, SEARCH, TRIAL, RunSpec, below
from automl.tracking.tracker import Tracker
from automl.tracking.writer import MlflowWriter
from search.config import TrialConfig
from search.record import CHECKPOINT_FILE, State, TrialRecord


def run_spec(folder: Path) -> RunSpec:
    return RunSpec(
        experiment="space",
        name="mine",
        identity="it",
        tags={SEARCH: "mine"},
        checkpoint=partial(below, Storage(folder)),
    )


def trained(number: int, folder: Path) -> TrialRecord:
    trial = TrialRecord(number, TrialConfig(), state=State.COMPLETE)
    trial.history = [{"epoch": 1.0, "accuracy": 0.5}, {"epoch": 2.0, "accuracy": 0.75}]
    Storage(folder / trial.folder).write(CHECKPOINT_FILE, b"")
    return trial


def test_writes_of_the_process_are_in_mlflow(store: MlflowClient, tmp_path: Path) -> None:
    with MlflowProcess(run_spec(tmp_path)) as writer:
        tracker = Tracker(writer)
        trials = [trained(number, tmp_path) for number in range(3)]
        for trial in trials:
            tracker.on_trial_end(trial)
        assert tracker.finish(best=trials[1], metric="accuracy", counts={State.COMPLETE: 3}) == 0
        assert (
            tracker.conclude(
                "it",
                {"headline": "it is better", "advice": "", "figures": "by 2 points", "cost": ""},
                tracker.runs[1],
            )
            == 0
        )
    (parent,) = store.search_runs(
        [store.get_experiment_by_name("space").experiment_id], f"tags.`{SEARCH}` = 'mine'"
    )
    assert parent.data.tags[BEST] == tracker.runs[1]
    for number, run_id in tracker.runs.items():
        run = store.get_run(run_id)
        assert run.data.tags[TRIAL] == str(number)
        assert run.info.status == "FINISHED"
        assert [m.value for m in store.get_metric_history(run_id, "accuracy")] == [0.5, 0.75]


def test_a_process_that_was_killed_is_replaced(
    store: MlflowClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("automl.tracking.tracker.PAUSE", (0.01, 0.02))
    with MlflowProcess(run_spec(tmp_path)) as writer:
        tracker = Tracker(writer)
        for number in range(3):
            tracker.on_trial_end(trained(number, tmp_path))
            if number % 2:
                writer.process.kill()  # in the middle of a write, or of its own start
            else:
                assert tracker.drain() == 0
        assert tracker.drain() == 0
        assert tracker.runs.keys() == set(range(3))
        runs = store.search_runs([store.get_run(tracker.runs[0]).info.experiment_id])
        assert len(runs) == 4, "no run twice"
    assert writer.process.poll() is not None


def test_a_prepared_process_is_taken_once_and_ends_with_its_block(tmp_path: Path) -> None:
    with prepared():
        ((process, _),) = _IDLE
        writer = MlflowProcess(run_spec(tmp_path))
        assert writer.process is process
        assert not _IDLE
    writer.process.kill()
    with prepared():
        ((process, _),) = _IDLE
    assert process.poll() is not None


@pytest.mark.slow("starts several processes")
def test_one_process_writes_two_searches_in_turn(store: MlflowClient, tmp_path: Path) -> None:
    with prepared():
        ((process, _),) = _IDLE
        for name in ("mine", "other"):
            spec = replace(run_spec(tmp_path), tags={SEARCH: name})
            with prepared(), MlflowProcess(spec) as writer:
                assert writer.process is process
                tracker = Tracker(writer)
                tracker.on_trial_end(trained(0, tmp_path))
                assert tracker.finish(best=None, metric=None, counts={State.COMPLETE: 1}) == 0
            experiments = [store.get_experiment_by_name("space").experiment_id]
            (parent,) = store.search_runs(experiments, f"tags.`{SEARCH}` = '{name}'")
            children = store.search_runs(experiments, f"tags.mlflow.parentRunId = '{parent.info.run_id}'")
            assert [run.info.run_id for run in children] == [tracker.runs[0]]
    assert process.poll() is not None


def test_a_process_that_ended_or_hangs_is_not_used_again(
    store: MlflowClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("automl.tracking.process.ANSWER", 0.01)
    with prepared():
        with MlflowProcess(run_spec(tmp_path)) as writer, pytest.raises(RuntimeError, match="not answer"):
            writer.contact()
        assert writer.process.poll() is not None
        assert not _IDLE


@pytest.mark.slow("starts another process of MLflow")
def test_a_process_that_owes_an_answer_is_not_used_again(store: MlflowClient, tmp_path: Path) -> None:
    with prepared():
        with MlflowProcess(run_spec(tmp_path)) as writer:
            writer.contact()
            writer._send("read_runs")  # Ctrl-C came before the answer
        assert writer.process.poll() is not None
        assert not _IDLE


def test_a_call_after_an_interrupted_one_gets_its_own_answer(
    store: MlflowClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(line: Connection, timeout: float) -> bool:
        raise KeyboardInterrupt

    with MlflowProcess(run_spec(tmp_path)) as writer:
        writer.read_runs()
        with monkeypatch.context() as patched:
            patched.setattr(Connection, "poll", interrupt)
            with pytest.raises(KeyboardInterrupt):
                writer.runs()
        assert writer.page() == MlflowWriter(run_spec(tmp_path)).page()
        with monkeypatch.context() as patched:
            patched.setattr(Connection, "poll", interrupt)
            with pytest.raises(KeyboardInterrupt):
                writer.finish(None, None, {}, "not a flag", "no trials")
        assert writer.page() == MlflowWriter(run_spec(tmp_path)).page(), "its error is not that of this call"


@pytest.mark.slow("starts several processes")
def test_two_that_create_the_store_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One creates it, whole or not at all, and what a killed process was creating goes."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    (tmp_path / ".mlflow.db.123").write_bytes(b"half")
    both = threading.Barrier(2)

    def create() -> str:
        both.wait()
        return str(open_client(create=True).create_experiment(threading.current_thread().name))

    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(create) for _ in range(2)]
        assert {future.result() for future in futures} == {"1", "2"}
    assert [file.name for file in tmp_path.iterdir()] == ["mlflow.db"]


@pytest.mark.slow("starts another process of MLflow")
def test_a_deleted_experiment_is_reported_before_any_write(store: MlflowClient, tmp_path: Path) -> None:
    store.delete_experiment(store.create_experiment("space"))
    with (
        MlflowProcess(run_spec(tmp_path)) as writer,
        pytest.raises(InputError, match=r"'space' .* was deleted. Restore it: mlflow experiments restore"),
    ):
        writer.contact()
    with pytest.raises(InputError, match="was deleted"):
        MlflowWriter(run_spec(tmp_path))


HERE = Path(__file__).parent
DRIVER = """
import sys, time
from pathlib import Path
sys.path[:0] = [{tests!r}, {root!r}]
from test_mlflow_process import run_spec
from automl.tracking.process import MlflowProcess
writer = MlflowProcess(run_spec(Path({folder!r})))
writer.runs()
print(writer.process.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.slow("starts several processes")
@pytest.mark.parametrize(
    "how", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow("another case"))]
)
def test_it_ends_with_the_driver_and_not_before(
    how: signal.Signals, store: MlflowClient, tmp_path: Path
) -> None:
    script = DRIVER.format(tests=str(HERE), root=str(HERE.parents[2]), folder=str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as driver:
        writer = psutil.Process(int(driver.stdout.readline()))
        for signal_number in (
            signal.SIGINT,
            signal.SIGTERM,
        ):  # as a terminal and a job's stop send to all processes
            writer.send_signal(signal_number)
        time.sleep(0.5)
        assert writer.is_running()
        driver.send_signal(how)
    psutil.wait_procs([writer], timeout=30)
    assert not writer.is_running()

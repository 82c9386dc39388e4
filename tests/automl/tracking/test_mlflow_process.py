import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from mlflow import MlflowClient

from automl.storage.storage import Storage
from automl.tracking import process
from automl.tracking.client import open_client
from automl.tracking.process import _IDLE, MlflowProcess, prepared
from automl.tracking.run_spec import BEST, SEARCH, TRIAL, RunSpec, below
from automl.tracking.tracker import Tracker
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


@pytest.mark.slow("starts two processes of MLflow")
def test_writes_are_in_mlflow_also_those_to_a_process_that_was_killed(
    store: MlflowClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("automl.tracking.tracker.PAUSE", (0.01, 0.02))
    with MlflowProcess(run_spec(tmp_path)) as writer:
        tracker = Tracker(writer)
        trials = [trained(number, tmp_path) for number in range(3)]
        for trial in trials:
            tracker.on_trial_end(trial)
            if trial.number == 1:
                writer.process.kill()  # in the middle of a write, or of its own start
            else:
                assert tracker.drain() == 0
        assert tracker.finish(best=trials[1], metric="accuracy", counts={State.COMPLETE: 3}) == 0
        verdict = {"headline": "it is better", "advice": "", "figures": "by 2 points", "cost": ""}
        assert tracker.conclude("it", verdict, tracker.runs[1]) == 0
    assert writer.process.poll() is not None
    experiments = [store.get_experiment_by_name("space").experiment_id]
    assert len(store.search_runs(experiments)) == 4, "no run twice"
    (parent,) = store.search_runs(experiments, f"tags.`{SEARCH}` = 'mine'")
    assert parent.data.tags[BEST] == tracker.runs[1]
    for number, run_id in tracker.runs.items():
        run = store.get_run(run_id)
        assert (run.data.tags[TRIAL], run.info.status) == (str(number), "FINISHED")
        assert [m.value for m in store.get_metric_history(run_id, "accuracy")] == [0.5, 0.75]


ECHO = """
import sys
from multiprocessing.connection import Connection
line = Connection(int(sys.argv[1]))
while True:
    method, arguments = line.recv()
    line.send((method, RuntimeError("wrong") if method == "finish" else None, []))
"""
NOTHING = SimpleNamespace(experiment="space")  # a specification that a process without MLflow can read


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that answer with the name of the method, or an error to `finish`, and import nothing."""

    def begin() -> tuple[subprocess.Popen[bytes], Connection]:
        line, theirs = Pipe()
        with theirs:
            command = [sys.executable, "-I", "-S", "-c", ECHO, str(theirs.fileno())]
            return subprocess.Popen(command, pass_fds=[theirs.fileno()]), line

    monkeypatch.setattr(process, "_begin", begin)


def test_a_process_that_was_killed_is_replaced(echo: None) -> None:
    with MlflowProcess(NOTHING) as writer:
        assert writer.page() == "page"
        first = writer.process
        first.kill()
        first.wait()
        assert writer.page() == "page"
        assert writer.process is not first
        with pytest.raises(RuntimeError, match="wrong"):
            writer.finish()
    assert writer.process.poll() is not None


def test_a_prepared_process_is_taken_once_and_ends_with_its_block(echo: None) -> None:
    with prepared():
        ((idle, _),) = _IDLE
        writer = MlflowProcess(NOTHING)
        assert writer.process is idle
        assert not _IDLE
    writer.process.kill()
    with prepared():
        ((idle, _),) = _IDLE
    assert idle.poll() is not None


def test_a_process_that_owes_an_answer_is_not_used_again(echo: None) -> None:
    with prepared():
        with MlflowProcess(NOTHING) as writer:
            writer.contact()
            writer._send("read_runs")  # Ctrl-C came before the answer
        assert writer.process.poll() is not None
        assert not _IDLE
        with MlflowProcess(NOTHING) as writer:
            writer.contact()
        assert _IDLE[0][0] is writer.process


def test_a_call_after_an_interrupted_one_gets_its_own_answer(
    echo: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(line: Connection, timeout: float) -> bool:
        raise KeyboardInterrupt

    with MlflowProcess(NOTHING) as writer:
        writer.read_runs()
        for call in (writer.runs, writer.finish):
            with monkeypatch.context() as patched:
                patched.setattr(Connection, "poll", interrupt)
                with pytest.raises(KeyboardInterrupt):
                    call()
            assert writer.page() == "page", "its answer, or its error, is not that of this call"


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
        for number in (signal.SIGINT, signal.SIGTERM):  # which a terminal and a job send to all processes
            writer.send_signal(number)
        time.sleep(0.5)
        assert writer.is_running()
        driver.send_signal(how)
    psutil.wait_procs([writer], timeout=30)
    assert not writer.is_running()


def test_postponed_comparisons_wait_for_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not take the second one, so the second and the third are left to a later process."""
    monkeypatch.setattr(process, "NICE", 0)
    monkeypatch.setattr(process, "resolve", lambda name: lambda search, storage: {"a": 1}[search])
    for name in "abc":
        (tmp_path / name / "confirm").mkdir(parents=True)
        (tmp_path / name / "confirm" / process.POSTPONED).touch()
    with pytest.raises(KeyError):
        process.sync_postponed(str(tmp_path))
    assert sorted(path.parts[-3] for path in tmp_path.rglob(process.POSTPONED)) == ["b", "c"]

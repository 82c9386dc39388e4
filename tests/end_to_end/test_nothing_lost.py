"""A search that is killed again and again ends as one that was left alone: no trial lost, none counted twice.

AUTOML_KILLS sets how often: once by default, 20 for the long version.
"""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from optuna.trial import TrialState
from sockets import open_to_others

from search.study import open_study, read_history, read_record

AUTOML = Path(sys.executable).parent / "automl"
KILLS = int(os.environ.get("AUTOML_KILLS", "1"))
TRIALS = min(30, 3 + 2 * KILLS)  # 30 in the long version
NAME = "killed"


class Search:
    """A search in a process of its own, with a local Ray and a local MLflow."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        made = (self.folder / "searches" / NAME / "study.journal").exists()
        options = ["--resume", NAME] if made else ["--space", "digits", "--name", NAME, *self.options()]
        if not made:  # killed before its first trial, it is simply started again
            subprocess.run(["rm", "-rf", self.folder / "searches"], check=True)
        with (self.folder / "output").open("a") as output:
            self.process = subprocess.Popen(
                [AUTOML, "search", *options], cwd=self.folder, stdout=output, stderr=output
            )

    @staticmethod
    def options() -> list[str]:
        size = ["--trials", str(TRIALS), "--epochs", str(min(6, 3 + KILLS)), "--subset", "0.5"]
        # Each process that starts costs the time of several trials.
        return size if os.environ.get("AUTOML_LONG") else [*size, "--concurrent", "1"]

    def wait(self) -> int:
        assert self.process is not None
        return self.process.wait(timeout=300)

    def children(self, name: str) -> list[psutil.Process]:
        assert self.process is not None
        try:
            below = psutil.Process(self.process.pid).children(recursive=True)
            return [child for child in below if name in " ".join(child.cmdline())]
        except psutil.NoSuchProcess:
            return []

    def until(self, name: str, count: int = 1) -> list[psutil.Process]:
        """The processes called so, once there are that many."""
        end = time.monotonic() + 60
        while time.monotonic() < end and self.process is not None and self.process.poll() is None:
            if len(found := self.children(name)) >= count:
                return found
            time.sleep(0.05)
        return []

    def output(self) -> str:
        return (self.folder / "output").read_text()


@pytest.fixture
def search(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    made = Search(tmp_path)
    yield made
    if made.process is not None and made.process.poll() is None:
        made.process.kill()
        made.process.wait()


def check_whole(search: Search) -> None:
    """The study and MLflow each hold every trial once, every epoch once, and agree on the best."""
    database = search.folder / "searches" / NAME / "study.journal"
    study = open_study(database.parent, name=NAME)
    assert len(study.trials) == TRIALS
    assert {trial.state for trial in study.trials} <= {TrialState.COMPLETE, TrialState.PRUNED}
    histories = [read_history(trial.user_attrs) for trial in study.trials]  # one may diverge at once
    for history in histories:
        assert [record["epoch"] for record in history] == list(range(1, len(history) + 1))

    store = sqlite3.connect(search.folder / "mlflow.db")
    runs = store.execute("select run_uuid, value from tags where key = 'automl.trial'").fetchall()
    assert sorted(int(number) for _, number in runs) == list(range(TRIALS)), "a run a trial"
    parents = store.execute("select run_uuid from tags where key = 'automl.identity'").fetchall()
    assert len(parents) == 1
    for run, number in runs:
        rows = store.execute(
            "select step, value from metrics where run_uuid = ? and key = 'accuracy' order by step", (run,)
        ).fetchall()
        assert rows == [(r["epoch"], r["accuracy"]) for r in histories[int(number)]], f"trial {number}"
        tags = dict(store.execute("select key, value from tags where run_uuid = ?", (run,)))
        record = read_record(study.trials[int(number)])
        assert record is not None
        assert tags["state"] == record.state
    best = store.execute("select value from tags where key = 'automl.best_run'").fetchone()[0]
    assert {run: int(number) for run, number in runs}[best] == study.best_trial.number


def left(processes: list[psutil.Process]) -> list[str]:
    """Those that are still there after a while, but for Ray's agents, which take up to two minutes."""
    _, alive = psutil.wait_procs([p for p in processes if "Agent" not in named(p)], timeout=60)
    return [named(process) for process in alive]


def named(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()) or process.name()
    except psutil.NoSuchProcess:
        return ""


@pytest.mark.timeout(2400)
def test_the_driver_is_killed(search):
    moments = random.Random(7)
    for _ in range(KILLS):
        search.start()
        # From before Ray is up to the middle of the training.
        time.sleep(moments.uniform(5, 8))
        search.until("ray::TrialActor")
        time.sleep(moments.uniform(0, 4))
        below = search.children("")
        search.process.kill()
        search.process.wait()
        assert left(below) == [], "a local Ray goes with its driver"
    search.start()
    assert search.wait() == 0, search.output()
    check_whole(search)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_trials_processes_are_killed(search):
    moments = random.Random(8)
    search.start()
    for _ in range(KILLS):
        actors = search.until("ray::TrialActor", 2)
        time.sleep(moments.uniform(0, 2))
        if actors:
            try:
                moments.choice(actors).kill()
            except psutil.NoSuchProcess:
                continue
        time.sleep(1)
    assert search.wait() == 0, search.output()
    check_whole(search)


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_all_of_ray_is_killed(search):
    moments = random.Random(9)
    for _ in range(max(1, KILLS // 4)):
        search.start()
        search.until("ray::TrialActor")
        time.sleep(moments.uniform(0, 3))
        for child in search.children(""):
            try:
                child.kill()
            except psutil.NoSuchProcess:
                continue
        assert search.wait() != 0, "without Ray it cannot go on"
    search.start()
    assert search.wait() == 0, search.output()
    check_whole(search)


@pytest.mark.long
def test_a_signal_stops_in_order(search):
    search.start()
    search.until("ray::TrialActor")
    time.sleep(2)
    assert open_to_others(search.process.pid) == []
    below = search.children("")
    search.process.send_signal(signal.SIGTERM)
    assert search.wait() == 128 + signal.SIGTERM
    assert "resume with: automl search --resume killed" in search.output()
    assert left(below) == []
    search.start()
    assert search.wait() == 0, search.output()
    check_whole(search)


@pytest.mark.long
def test_a_second_signal_stops_at_once_and_loses_nothing(search):
    search.start()
    search.until("ray::TrialActor")
    time.sleep(2)
    below = search.children("")
    search.process.send_signal(signal.SIGINT)
    time.sleep(0.1)
    search.process.send_signal(signal.SIGINT)
    assert search.wait() == 130
    assert left(below) == []
    search.start()
    assert search.wait() == 0, search.output()
    check_whole(search)

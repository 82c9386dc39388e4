"""A search in a process of its own that tests kill, and what must be left of it: every trial, each once."""

import json
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

import psutil
from optuna.trial import TrialState

from search.record import TrialRecord
from search.study import STUDY_FILE, open_study, read_history, read_record, read_records

SCRIPT = Path(sys.executable).parent / "automl"
AUTOML = (
    [str(SCRIPT)] if SCRIPT.exists() else [sys.executable, "-m", "automl"]
)  # the latter without `make setup`


class Search:
    """With a local Ray and the MLflow of the environment. options: of the search when it is begun."""

    def __init__(self, folder: Path, name: str, options: Sequence[object]) -> None:
        self.folder, self.name, self.options = folder, name, options
        self.process: subprocess.Popen | None = None

    @property
    def search_folder(self) -> Path:
        return self.folder / "searches" / self.name

    def start(self) -> None:
        exists = (self.search_folder / STUDY_FILE).exists()
        options = ["--resume", self.name] if exists else ["--name", self.name, *map(str, self.options)]
        if not exists:  # killed before its first trial, it is simply started again
            subprocess.run(["rm", "-rf", self.folder / "searches"], check=True)
        with (self.folder / "output").open("a") as output:
            self.process = subprocess.Popen(
                [*AUTOML, "search", *options],
                cwd=self.folder, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip

    def wait(self) -> int:
        assert self.process is not None
        return self.process.wait(timeout=300)

    def end(self) -> None:
        """Kill the search if it is still running."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def kill(self) -> None:
        """Kill the search while it is running, with which its Ray goes."""
        below = self.children()
        self.end()
        assert left(below) == [], "a local Ray goes with its driver"

    def finish(self, trials: int) -> None:
        assert self.wait() == 0, self.output()
        self.check_whole(trials)

    def children(self, name: str = "") -> list[psutil.Process]:
        assert self.process is not None
        return processes_of(self.process.pid, name)

    def until_record(self, condition: Callable[[TrialRecord], object]) -> None:
        """Wait for a trial with which the condition is met."""
        end = time.monotonic() + 300
        while time.monotonic() < end:
            assert self.process is not None
            assert self.process.poll() is None, self.output()
            exists = (self.search_folder / STUDY_FILE).exists()
            if exists and any(map(condition, read_records(self.search_folder, self.name))):
                return
            time.sleep(0.2)
        raise TimeoutError(self.output())

    def until(self, name: str, count: int = 1) -> list[psutil.Process]:
        """The processes called so, once there are that many."""
        end = time.monotonic() + 200
        while time.monotonic() < end and self.process is not None and self.process.poll() is None:
            if len(processes := self.children(name)) >= count:
                return processes
            time.sleep(0.05)
        return []

    def output(self) -> str:
        return (self.folder / "output").read_text()

    def check_whole(self, trials: int) -> None:
        """The study and MLflow each hold every trial and epoch once, and MLflow has the result's best."""
        study = open_study(self.search_folder, name=self.name)
        assert len(study.trials) == trials
        assert {trial.state for trial in study.trials} <= {TrialState.COMPLETE, TrialState.PRUNED}
        histories = [read_history(trial.user_attrs) for trial in study.trials]  # one may diverge at once
        for history in histories:
            epochs = [record["epoch"] for record in history]
            assert epochs == [1 + i for i in range(len(epochs))]

        store = sqlite3.connect(self.folder / "mlflow.db")
        tags_of_trials = "select run_uuid, value from tags where key = 'automl.trial' and value <> '-1'"
        runs = store.execute(tags_of_trials).fetchall()
        assert sorted(int(number) for _, number in runs) == list(range(trials)), "a run a trial"
        parents = store.execute("select run_uuid from tags where key = 'automl.identity'").fetchall()
        assert len(parents) == 1
        for run, number in runs:
            rows = store.execute(
                "select step, value from metrics where run_uuid = ? and key = 'accuracy' order by step",
                (run,),
            ).fetchall()
            assert rows == [(r["epoch"], r["accuracy"]) for r in histories[int(number)]], f"trial {number}"
            tags = dict(store.execute("select key, value from tags where run_uuid = ?", (run,)))
            record = read_record(study.trials[int(number)])
            assert record is not None
            assert tags["state"] == record.state
        best = store.execute("select value from tags where key = 'automl.best_run'").fetchone()[0]
        result = json.loads((self.search_folder / "result.json").read_text())
        assert {run: int(number) for run, number in runs}[best] == result["best"]["number"]


def processes_of(pid: int, pattern: str = "") -> list[psutil.Process]:
    """Return the processes below one whose command lines match a pattern."""
    below = []
    with suppress(psutil.Error):
        below = psutil.Process(pid).children(recursive=True)
    return [process for process in below if (name := named(process)) and re.search(pattern, name)]


def left(processes: list[psutil.Process]) -> list[str]:
    """Those that are still there after a while, but for Ray's agents, which take up to two minutes."""
    _, alive = psutil.wait_procs([p for p in processes if "Agent" not in named(p)], timeout=60)
    return [named(process) for process in alive]


def named(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()) or process.name()
    except psutil.Error:  # it has ended
        return ""


def open_to_others(pid: int) -> list[tuple[str, str]]:
    """The name of a process and the address, for each that other machines could reach."""
    addresses = []
    process = psutil.Process(pid)
    for process_or_child in (process, *process.children(recursive=True)):
        try:
            sockets = process_or_child.net_connections("inet")
            name = " ".join(process_or_child.cmdline()).strip()
        except psutil.Error:  # has ended meanwhile
            continue
        for socket in sockets:
            address = ip_address(socket.laddr.ip) if socket.status == psutil.CONN_LISTEN else None
            if address is not None and not (getattr(address, "ipv4_mapped", None) or address).is_loopback:
                addresses.append((name, f"{socket.laddr.ip}:{socket.laddr.port}"))
    return addresses

"""A search on a cluster whose nodes come and go: each node a Ray of its own on this machine, with one core.

AUTOML_ROUNDS repeats each fault so often, each time at another moment.
"""

import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from search.record import State, TrialRecord
from search.study import read_records
from tests.helpers.services import free_port

BIN = Path(sys.executable).parent
ROUNDS = int(os.environ.get("AUTOML_ROUNDS", "1"))
NAME = "faults"
PATIENCE = 120.0  # seconds for whatever is waited for
TRIALS = 8

TRIAL = "ray::(TrialActor|ResourceTrainable)"  # the process of a trial as Ray names it, idle or in an epoch

# A node that is gone is noticed within seconds.
QUICK = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "5",
    "RAY_AUTH_MODE": "disabled",  # nothing but this machine reaches it
    "RAY_USAGE_STATS_ENABLED": "0",
}


class Cluster:
    """A head without a core, and nodes with one each. Use as a context."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.temporary = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # sockets' paths must be short
        self.address = f"127.0.0.1:{free_port()}"
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {**os.environ, **QUICK, "RAY_ADDRESS": self.address}

    def __enter__(self) -> "Cluster":
        self._start("head", "--head", "--port", self.address.rpartition(":")[2], "--num-cpus", "0",
                    "--include-dashboard", "false")  # fmt: skip
        return self

    def __exit__(self, *error: object) -> None:
        for name in reversed(list(self.nodes)):
            self.kill(name)
        shutil.rmtree(self.temporary, ignore_errors=True)

    def add(self, name: str, cache: Path | None = None) -> None:
        """A node with a resource of its name."""
        own = ["--num-cpus", "1", "--resources", json.dumps({name: 1})]
        self._start(name, "--address", self.address, *own, cache=cache)

    def _start(self, name: str, *options: str, cache: Path | None = None) -> None:
        environment = {key: value for key, value in self.environment.items() if key != "RAY_ADDRESS"}
        environment["AUTOML_CACHE"] = str(cache or self.folder / f"cache-{name}")
        command = [BIN / "ray", "start", "--block", "--node-ip-address", "127.0.0.1", *options,
                   "--object-store-memory", "100000000", "--temp-dir", self.temporary]  # fmt: skip
        with (self.folder / f"{name}.log").open("wb") as log:
            self.nodes[name] = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        log_file = self.folder / f"{name}.log"
        until(
            lambda: "Ray runtime started" in log_file.read_text() or self.nodes[name].poll() is not None, name
        )
        assert self.nodes[name].poll() is None, log_file.read_text()

    def processes(self, name: str) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self.nodes[name].pid).children(recursive=True)
        return []

    def trains(self, name: str) -> bool:
        for process in self.processes(name):
            with suppress(psutil.Error):
                if re.match(TRIAL, " ".join(process.cmdline())):
                    return True
        return False

    def kill(self, name: str) -> None:
        """Everything of the node at once, as when its plug is pulled."""
        node = self.nodes.pop(name)
        below = psutil.Process(node.pid).children(recursive=True) if node.poll() is None else []
        for process in (node, *below):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        node.wait()
        psutil.wait_procs(below, timeout=30)

    def id_of(self, name: str) -> str:
        """Ray's, of a node."""
        script = (
            "import ray; ray.init(log_to_driver=False); "
            f"print([node['NodeID'] for node in ray.nodes() if {name!r} in node['Resources']][0])"
        )
        process = subprocess.run(
            [sys.executable, "-c", script], env=self.environment, capture_output=True, text=True, check=True
        )
        return process.stdout.split()[-1]

    def drain(self, name: str, seconds: int = 600) -> None:
        """Give notice, as the owner of a spot machine does."""
        subprocess.run(
            [BIN / "ray", "drain-node", "--address", self.address, "--node-id", self.id_of(name),
             "--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "spot",
             "--deadline-remaining-seconds", str(seconds)],
            env=self.environment, check=True, capture_output=True,
        )  # fmt: skip


class Search:
    """`automl search` in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, cluster: Cluster, *options: str) -> None:
        command = [BIN / "automl", "search", "--space", "digits", "--name", NAME, "--resume", "auto",
                   "--trials", str(TRIALS), "--epochs", "8", "--subset", "0.5", "--sampler", "tpe",
                   *options]  # fmt: skip
        store = {"MLFLOW_TRACKING_URI": f"sqlite:///{self.folder / 'mlflow.db'}"}
        with (self.folder / "output").open("ab") as output:
            self.process = subprocess.Popen(
                command, cwd=self.folder, env={**cluster.environment, **store}, stdout=output, stderr=output
            )

    def wait(self) -> int:
        return self.process.wait(timeout=300)

    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def output(self) -> str:
        return (self.folder / "output").read_text()

    def records(self) -> list[TrialRecord]:
        if f"search {NAME} in" not in self.output():  # its study is not made yet
            return []
        return list(read_records(self.folder / "searches" / NAME, NAME))

    def epochs(self) -> dict[tuple[int, int], float]:
        """When each epoch of each trial ended."""
        return {(r.number, int(m["epoch"])): m["time"] for r in self.records() for m in r.history}

    def check_whole(self, before: dict[tuple[int, int], float]) -> None:
        """Every trial once and to its end, every epoch once, and none of those `before` trained again."""
        records = self.records()
        assert [record.number for record in records] == list(range(TRIALS))
        assert {record.state for record in records} <= {State.COMPLETE, State.PRUNED}, self.output()
        for record in records:
            assert [m["epoch"] for m in record.history] == list(range(1, len(record.history) + 1))
        after = self.epochs()
        assert {key: after[key] for key in before} == before


def until(condition: Callable[[], bool], what: str, search: Search | None = None) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert search is None or search.running(), f"ended before: {what}\n{search.output()}"
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {PATIENCE:g} s")
        time.sleep(0.1)


@pytest.fixture(params=range(ROUNDS))
def moments(request: pytest.FixtureRequest) -> random.Random:
    seed = int(os.environ.get("AUTOML_SEED", time.time_ns() % 10**6))
    print(f"round {request.param}: AUTOML_SEED={seed}")
    return random.Random(seed)


@pytest.fixture
def search(tmp_path: Path) -> Iterator[Search]:
    search = Search(tmp_path)
    yield search
    if search.running():
        search.process.kill()
        search.process.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as cluster:
        yield cluster


def all_train(cluster: Cluster, names: Sequence[str]) -> Callable[[], bool]:
    return lambda: all(cluster.trains(name) for name in names)


@pytest.mark.slow("Ray's own reports of a lost node are always tried, in test_tuner.py")
def test_a_node_joins_and_a_node_dies(cluster: Cluster, search: Search, moments: random.Random) -> None:
    cluster.add("a")
    cluster.add("b")
    search.start(cluster)
    until(all_train(cluster, "ab"), "both nodes train", search)
    cluster.add("c")
    until(all_train(cluster, "abc"), "the new node trains, too", search)
    time.sleep(moments.uniform(0, 4))
    before = search.epochs()
    cluster.kill(moments.choice("abc"))
    assert search.wait() == 0, search.output()
    search.check_whole(before)


@pytest.mark.slow("starts a cluster")
def test_without_any_node_it_stops_and_says_why(
    cluster: Cluster, search: Search, moments: random.Random
) -> None:
    cluster.add("a")
    search.start(cluster)
    until(lambda: bool(search.epochs()), "an epoch", search)
    time.sleep(moments.uniform(0, 2))
    cluster.kill("a")
    assert search.wait() == 2
    assert "error: a trial asks for 1 CPUs and 0 GPUs on one node; the cluster has 0 CPUs" in search.output()
    assert f"automl search --resume {NAME}" in search.output().splitlines()[-1]
    assert "Traceback" not in search.output()
    before = search.epochs()
    cluster.add("b")
    search.start(cluster)
    assert search.wait() == 0, search.output()
    search.check_whole(before)


@pytest.mark.slow("starts a cluster")
def test_trials_leave_a_node_that_drains(cluster: Cluster, search: Search, moments: random.Random) -> None:
    cluster.add("a")
    cluster.add("b")
    search.start(cluster)
    until(all_train(cluster, "ab"), "both nodes train", search)
    until(lambda: bool(search.epochs()), "an epoch", search)
    time.sleep(moments.uniform(0, 3))
    gone = moments.choice("ab")
    cluster.drain(gone)
    before = search.epochs()
    until(lambda: not cluster.trains(gone), "its trials leave", search)
    until(lambda: len(search.epochs()) >= len(before) + 3, "others continue", search)
    assert not cluster.trains(gone)
    cluster.kill(gone)
    assert search.wait() == 0, search.output()
    search.check_whole(before)


@pytest.mark.slow("starts a cluster")
def test_a_node_with_a_full_disk_is_left_alone(
    cluster: Cluster, search: Search, small_disk: Path, moments: random.Random
) -> None:
    names = moments.sample("ab", 2)
    for name in names:
        cluster.add(name, cache=small_disk if name == "a" else None)
    search.start(cluster)
    until(lambda: "no more trials on node" in search.output(), "the node is reported", search)
    until(lambda: not cluster.trains("a"), "its trial leaves", search)
    assert search.wait() == 0, search.output()
    search.check_whole({})
    lines = [line for line in search.output().splitlines() if "no more trials on node" in line]
    assert len(lines) == 1
    assert "no disk space left for the dataset's cache" in lines[0]
    assert re.search(r" [\d.]+[kM]B are free", lines[0])

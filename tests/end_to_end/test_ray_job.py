"""`ray job submit` from another folder, to a cluster that asks for a token, as `ray start` makes it."""

import json
import os
import re
import socket
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import mlflow
import psutil
import pytest
import ray
import requests
from optuna.trial import TrialState

from search.study import open_study
from tests.helpers.killable import open_to_others
from tests.helpers.own_model import make_model
from tests.helpers.photographs import make_photographs
from tests.helpers.services import free_port

BIN = Path(sys.executable).parent
ROOT = Path(__file__).parents[2]
SEARCH = ["python", "-m", "automl.search", "--space", "digits", "--sampler", "tpe"]
TRIALS = 3
pytestmark = pytest.mark.slow("starts a cluster")


@dataclass
class Cluster:
    """A head, in `folder`, and what is needed to talk to it from `elsewhere`.

    environment: of who submits. address: of Ray itself.
    """

    folder: Path
    elsewhere: Path
    environment: dict[str, str]
    address: str
    head: subprocess.Popen

    def submit(self, *arguments: object) -> subprocess.Popen:
        """The process prints the job's log and ends as the job does."""
        return subprocess.Popen(
            [BIN / "ray", "job", "submit", *map(str, arguments)],
            cwd=self.elsewhere,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, command: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [BIN / command, *map(str, arguments)],
            cwd=self.elsewhere,
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=300,
        )

    def stop(self, job: str) -> None:
        """Stop the job at once. `ray job stop` takes seconds to start, in which a short search may end."""
        token = Path(self.environment["HOME"], ".ray", "auth_token").read_text().strip()
        answer = requests.post(
            f"{self.environment['RAY_API_SERVER_ADDRESS']}/api/jobs/{job}/stop",
            headers={"Authorization": f"Bearer {token}"},
            timeout=60,
        )
        assert answer.json() == {"stopped": True}, answer.text

    def trials(self) -> list[psutil.Process]:
        """The processes in which trials run."""
        matches = []
        for process in psutil.Process(self.head.pid).children(recursive=True):
            try:
                if "ray::TrialActor" in " ".join(process.cmdline()):
                    matches.append(process)
            except psutil.Error:
                continue
        return matches


@contextmanager
def started(folder: Path, home: Path, python: Path) -> Iterator[Cluster]:
    """A cluster whose nodes run `python`, with the token that is in `home`."""
    folder.mkdir()
    environment = {
        **os.environ,
        "HOME": str(home),
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        "RAY_AUTH_MODE": "token",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on loopback alone
        "RAY_JOB_STOP_WAIT_TIME_S": "60",
    }
    for name in ("RAY_ADDRESS", "RAY_AUTH_TOKEN", "MLFLOW_TRACKING_URI"):
        environment.pop(name, None)
    gcs, dashboard = free_port(), free_port()
    log = folder / "head.log"
    with log.open("w") as output:
        head = subprocess.Popen(
            [python, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--num-cpus=2",
             f"--port={gcs}", f"--dashboard-port={dashboard}", f"--ray-client-server-port={free_port()}",
             f"--dashboard-agent-listen-port={free_port()}", f"--dashboard-agent-grpc-port={free_port()}",
             f"--metrics-export-port={free_port()}"],
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    environment["PATH"] = os.environ["PATH"]
    environment["RAY_API_SERVER_ADDRESS"] = f"http://127.0.0.1:{dashboard}"
    elsewhere = folder.parent / "elsewhere"
    elsewhere.mkdir()
    try:
        for _ in range(240):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", dashboard)) == 0:
                    break
            assert head.poll() is None, log.read_text()
            time.sleep(0.5)
        yield Cluster(folder, elsewhere, environment, f"127.0.0.1:{gcs}", head)
    finally:
        head.terminate()
        try:
            head.wait(60)
        finally:
            if head.poll() is None:
                os.killpg(head.pid, 9)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a token of its own, as a person makes it."""
    home = tmp_path_factory.mktemp("home")
    subprocess.run(
        [BIN / "ray", "get-auth-token", "--generate"],
        env={**os.environ, "HOME": str(home), "RAY_AUTH_MODE": "token"},
        capture_output=True,
        check=True,
    )
    assert (home / ".ray" / "auth_token").stat().st_size >= 32
    return home


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Iterator[Cluster]:
    """A cluster on whose nodes this package is installed."""
    with started(tmp_path_factory.mktemp("installed") / "head", home, Path(sys.executable)) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Iterator[Cluster]:
    """A cluster whose nodes have everything but this package."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder / "venv")
    python = folder / "venv" / "bin" / "python"
    packages = next((folder / "venv" / "lib").glob("python*/site-packages"))
    for package in Path(ray.__file__).parents[1].iterdir():
        if "attention_automl" not in package.name and package.name not in os.listdir(ROOT):
            (packages / package.name).symlink_to(package)
    missing = subprocess.run([python, "-c", "import automl"], cwd=folder, capture_output=True, text=True)
    assert "No module named 'automl'" in missing.stderr
    with started(folder / "head", home, python) as cluster:
        yield cluster


def runs(store: Path) -> tuple[mlflow.entities.Run, list[mlflow.entities.Run]]:
    """The search's run and its trials'."""
    client = mlflow.MlflowClient(f"sqlite:///{store}")
    runs = client.search_runs([client.get_experiment_by_name("digits").experiment_id])
    (parent,) = (run for run in runs if "mlflow.parentRunId" not in run.data.tags)
    return parent, [run for run in runs if "mlflow.parentRunId" in run.data.tags]


def job_output(log: str) -> list[str]:
    """Return the lines that the job itself has printed, without those of Ray."""
    _, _, own = log.partition("Running entrypoint for job ")
    return list(takewhile(lambda line: not re.match(r"\d{4}-\d\d-\d\d ", line), own.splitlines()[1:]))


def test_a_search_ends_well_where_the_package_is_installed(installed: Cluster) -> None:
    job = installed.submit("--", *SEARCH, "--trials", 2, "--epochs", 2, "--subset", 0.2, "--name", "first")
    log, _ = job.communicate(timeout=300)
    assert job.returncode == 0, log
    assert "succeeded" in log
    # Relative paths lie below the folder in which the cluster was started.
    assert (installed.folder / "searches" / "first" / "result.json").is_file()
    parent, children = runs(installed.folder / "mlflow.db")
    assert (parent.info.status, len(children)) == ("FINISHED", 2)
    for child in children:
        assert "accuracy" in child.data.metrics
        assert "learning_rate" in child.data.params
    assert not list(installed.elsewhere.iterdir())


def test_a_model_of_ones_own_goes_along(installed: Cluster, tmp_path: Path) -> None:
    """Its two files are in the folder that is sent, and are sent on to the trials."""
    make_photographs(tmp_path / "photos")
    make_model(tmp_path)
    shared = installed.folder / "own"
    kept = f"--storage {shared}"
    options = f"--data {tmp_path / 'photos'} --size 32 --trials 4 --epochs 2 --name own {kept}"
    commands = [
        f"python -m automl.search --space folder --backbone mine.py:Net {options}",
        f"automl confirm --search own {kept} --top 1 --seeds 6",
        f"automl report --search own {kept}",
        f"automl export --best --search own {kept} --out {shared / 'exported'}",
    ]
    store = f"MLFLOW_TRACKING_URI=sqlite:///{shared}/mlflow.db"
    job = installed.submit(
        "--working-dir", tmp_path / "models", "--", "env", store, "sh", "-c", " && ".join(commands)
    )
    log, _ = job.communicate(timeout=500)
    assert job.returncode == 0, log
    assert (shared / "exported" / "model.onnx").is_file()
    assert json.loads((shared / "own" / "result.json").read_text())["errors"] == 0


@dataclass
class Life:
    """A search that is sent along, stopped and started again."""

    stopped: tuple[mlflow.entities.Run, list[mlflow.entities.Run]]
    left: list[psutil.Process]
    reachable: list[tuple[str, str]]
    shared: Path
    folder: Path
    log: str
    status: int


@pytest.fixture(scope="module")
def life(bare: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Life:
    shared = tmp_path_factory.mktemp("shared")
    folder, store = shared / "searches" / "sent", shared / "mlflow.db"

    def begin(job: str) -> subprocess.Popen:
        return bare.submit(
            "--working-dir", ROOT, "--submission-id", job, "--",
            "env", f"MLFLOW_TRACKING_URI=sqlite:///{store}", *SEARCH, "--trials", TRIALS, "--epochs", 8,
            "--subset", 0.5, "--concurrent", 1, "--name", "sent", "--resume", "auto",
            "--storage", shared / "searches",
        )  # fmt: skip

    first = begin("first")
    while not list(folder.glob("trials/*/checkpoint.pt")):
        assert first.poll() is None, first.communicate()[0]
        time.sleep(0.2)
    bare.stop("first")
    first.communicate(timeout=120)
    stopped = runs(store)
    until = time.monotonic() + 60
    while (left := bare.trials()) and time.monotonic() < until:
        time.sleep(0.2)

    again = begin("again")
    while again.poll() is None and not bare.trials():
        time.sleep(0.2)
    reachable = open_to_others(bare.head.pid)
    log, _ = again.communicate(timeout=300)
    return Life(stopped, left, reachable, shared, folder, log, again.returncode)


def test_storage_that_ends_with_the_job_is_rejected(bare: Cluster) -> None:
    job = bare.submit("--working-dir", ROOT, "--", *SEARCH)
    log, _ = job.communicate(timeout=300)
    assert job.returncode == 1
    (error,) = job_output(log)
    assert error.startswith("error: --storage searches and MLflow's sqlite:///mlflow.db would be deleted")


def test_a_cluster_of_one_machine_can_be_kept_to_it(life: Life) -> None:
    assert life.reachable == []


def test_a_job_is_stopped_in_order(life: Life) -> None:
    parent, children = life.stopped
    assert (parent.info.status, parent.data.tags["state"]) == ("KILLED", "stopped")
    assert "stopped" in {child.data.tags["state"] for child in children}
    assert "RUNNING" not in {child.info.status for child in children}
    assert life.left == []


def test_the_same_command_goes_on_with_it(life: Life) -> None:
    assert life.status == 0, life.log
    study = open_study(life.folder, name="sent")
    assert len(study.trials) == TRIALS
    assert {trial.state for trial in study.trials} <= {TrialState.COMPLETE, TrialState.PRUNED}
    parent, children = runs(life.shared / "mlflow.db")
    assert (parent.info.status, parent.data.tags["state"]) == ("FINISHED", "complete")
    assert len(children) == TRIALS
    artifacts = Path(parent.info.artifact_uri.removeprefix("file://"))
    assert (artifacts / "search.json").is_file()
    assert artifacts.is_relative_to(life.shared), "not in the folder that goes"

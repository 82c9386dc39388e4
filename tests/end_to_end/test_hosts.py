"""A cluster of hosts that share nothing but an object store and MLflow, used from a laptop, and its faults.

`make test-hosts` runs it: three hosts with Ray and one core each, one with the store, and the laptop, which
has Ray and nothing else. HOSTS_TIMES repeats each fault, each time at another moment of training.
HOSTS_RECORD names a file that gets a line of JSON for each.
"""

import json
import os
import random
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import hosts
from tests.helpers.hosts import Host, Lab, until
from tests.helpers.photographs import make_noise, make_photographs
from tests.helpers.services import ObjectStore

pytestmark = [pytest.mark.slow("five hosts"), pytest.mark.timeout(1200)]
ROOT = Path(__file__).parents[2]
OWN = ("attention", "automl", "backbones", "cluster", "search")
AUTOML = ["python", "-m", "automl"]
TIMES = int(os.environ.get("HOSTS_TIMES", "1"))
HEAD, *WORKERS = RAY_HOSTS = ("host1", "host2", "host3")
PACKAGES = ("fastai", "mlflow", "pandas", "ray", "sqlalchemy", "sympy", "torch", "torchvision")  # large ones
TRIAL = "ray::(TrialActor|ResourceTrainable|RayTrainWorker)"  # the process of a trial as Ray names it
SEEDS, EPOCHS = 3, 12
TRIALS = 2 * SEEDS

SPACE = """
from attention import Spec
from search.config import ImageData, ImageTraining, Model, TrialConfig


def cells(trial):
    name = trial.suggest_categorical("attention", ["none", "ssa"])
    placement = {} if name == "none" else {"stage2.block2": Spec(name)}
    return TrialConfig(
        data=ImageData(DATA, size=32),
        model=Model(backbone="xresnet18", options={"width": 0.25}, placement=placement),
        training=ImageTraining(TRAINING, batch_size=32),
    )


cells.baseline = cells.plain = {"attention": "none"}
"""

# Two workers sum in another order than one, and each step amplifies that. At a small rate it stays small.
SPACES = {
    "cells": {"DATA": "source='digits', subset=0.5", "TRAINING": f"epochs={EPOCHS}"},
    "gentle": {
        "DATA": "source='folder', path='noise'",
        "TRAINING": "epochs=2, optimizer='sgd', learning_rate=1e-3",
    },
}

# Programs that run on a host.
READ = """
import json, sys
from automl.storage.folder import find_search
from search.study import read_records
folder, metadata = find_search(sys.argv[2], sys.argv[1])
records = read_records(folder, metadata.name, metadata.plan.needed)
print(json.dumps([[r.number, r.state, r.reason, r.history] for r in records]))
"""
RUNS = """
import json, sqlite3, sys
query = '''select n.value from tags n join tags p using (run_uuid) join tags s on s.run_uuid = p.value where
    n.key = 'automl.trial' and p.key = 'mlflow.parentRunId' and s.key = 'mlflow.runName' and s.value = ?'''
rows = sqlite3.connect("mlflow.db").execute(query, sys.argv[1:])
print(json.dumps(sorted(int(number) for (number,) in rows)))
"""
SEND = """
import sys
from pyarrow.fs import S3FileSystem
files = S3FileSystem(endpoint_override="127.0.0.1:9001", scheme="http", allow_bucket_creation=True)
files.create_dir("automl")
files.open_output_stream("automl/photos.tgz").write(open(sys.argv[1], "rb").read())
"""
FETCH = """
import sys
from pyarrow.fs import FileSystem
files, path = FileSystem.from_uri(sys.argv[1])
open("/tmp/home/photos.tgz", "wb").write(files.open_input_file(path).read())
"""
LISTENS = (
    "import socket, sys; [socket.create_connection((sys.argv[1], int(port)), 1) for port in sys.argv[2:]]"
)


@dataclass
class Cluster:
    """Hosts with Ray, a store with MLflow, and a laptop. `code` is the folder that it sends with a job."""

    lab: Lab
    folder: Path
    keys: dict[str, str]
    jobs: int = 0
    code: str = "code"
    ray: dict[str, subprocess.Popen] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.head, self.store, self.laptop = (self.lab.hosts[name] for name in (HEAD, "store", "laptop"))

    @property
    def code_folder(self) -> Path:
        return self.laptop.path(f"/tmp/home/{self.code}")

    def storage(self, path: str = "searches") -> str:
        return f"s3://automl/{path}?endpoint_override={self.store.address}:9000&scheme=http"

    def start_ray(self) -> None:
        """Start Ray on each host where it does not run, and the host, if it was killed."""
        for name in RAY_HOSTS:
            host = self.lab.hosts[name]
            if not host.runs:
                host.start()
            if name not in self.ray or self.ray[name].poll() is not None:
                own = ["--head", "--port=6379", f"--dashboard-host={host.address}"]
                role = own if name == HEAD else [f"--address={self.head.address}:6379"]
                size = [
                    f"--node-ip-address={host.address}",
                    "--num-cpus=1",
                    "--object-store-memory=100000000",
                ]
                self.ray[name] = host.popen("ray", "start", "--block", *role, *size, log="ray.log")
            if name in (HEAD, RAY_HOSTS[-1]):  # the others start side by side
                for begun in RAY_HOSTS[: RAY_HOSTS.index(name) + 1]:
                    until(partial(self._has_ray, begun), f"Ray on {begun}")

    def _has_ray(self, name: str) -> bool:
        log = self.lab.hosts[name].path("/tmp/home/ray.log").read_text()
        assert self.ray[name].poll() is None, log
        return "Ray runtime started" in log

    def stop_ray(self) -> None:
        """Unplug all hosts with Ray."""
        for name in RAY_HOSTS:
            self.lab.hosts[name].kill()
            self.ray[name].wait()

    def submit(self, *command: object) -> subprocess.Popen:
        """Send a job from the laptop. The process prints its log and ends as it does."""
        self.jobs += 1
        options = ["--address", f"http://{self.head.address}:8265", "--working-dir", self.code]
        tracking = f"MLFLOW_TRACKING_URI=http://{self.store.address}:5000"
        return self.laptop.popen(
            "ray", "job", "submit", *options, "--", "env", tracking, *command, log=f"job-{self.jobs}.log"
        )

    def search(self, name: str, *options: object, space: str = "cells") -> subprocess.Popen:
        grid = ["--space", f"{space}.py:cells", "--sampler", "grid", "--equal", "epochs", "--resume", "auto"]
        return self.submit(*AUTOML, "search", *grid, "--name", name, "--storage", self.storage(), *options)

    def log(self) -> str:
        return self.laptop.path(f"/tmp/home/job-{self.jobs}.log").read_text()

    def finish(self, job: subprocess.Popen) -> str:
        """Wait for a job that ends well, and return its log."""
        job.wait(500)
        assert job.returncode == 0, self.log()
        return self.log()

    def leave(self) -> None:
        """End the laptop's command of a job, as by Ctrl-C. Without a word from the head it waits for ever."""
        for process in self.laptop.processes("job submit"):
            process.kill()

    def observe(self, code: str, *arguments: object) -> str:
        """Run Python in the network of the store, with the files of this machine."""
        program = ["nsenter", f"--target={self.store.pid}", "--net", sys.executable, "-c", code]
        done = subprocess.run(
            [*program, *map(str, arguments)],
            env={**os.environ, **self.keys, "AUTOML_CACHE": str(self.folder / "cache")},
            capture_output=True,
            text=True,
            cwd=ROOT,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def records(self, name: str) -> list[Any]:
        """Number, state, reason and history of each trial of a search."""
        return json.loads(self.observe(READ, self.storage(), name))

    def saves(self, name: str) -> list[str]:
        """The host of each checkpoint that was sent to the store."""
        names = {host.address: host.name for host in self.lab.hosts.values()}
        first = re.compile(rf"PUT \S+/searches/{name}/\S+/checkpoint\.pt(\?partNumber=1&\S*)? (open|slow)$")
        lines = self.store.path("/tmp/home/requests").read_text().splitlines()
        return [names[line.split()[1]] for line in lines if first.search(line)]

    def find_flaws(self, name: str, records: list[Any]) -> list[str]:
        """Return where not every trial and epoch is there once and to its end, and what is left on hosts."""
        runs = json.loads(self.store.run(sys.executable, "-c", RUNS, name))
        flaws = []
        if [(number, state) for number, state, *_ in records] != [(i, "complete") for i in range(TRIALS)]:
            flaws.append(f"the study has {[record[:3] for record in records]}")
        for number, *_, history in records:
            if (epochs := [metrics["epoch"] for metrics in history]) != list(range(1, EPOCHS + 1)):
                flaws.append(f"trial {number} has epochs {epochs}")
        if runs != list(range(TRIALS)):
            flaws.append(f"MLflow has runs of trials {runs}")
        for host in (self.lab.hosts[each] for each in RAY_HOSTS):
            if host.runs:
                flaws += [f"{host.name} still trains"] * (not ends(host))
                flaws += [f"{host.name} has {path.name}" for path in host.path("/tmp/home").rglob("*.tmp")]
        return flaws


def ends(host: Host) -> bool:
    """Return True once a host has no process of a trial."""
    with suppress(TimeoutError):
        until(lambda: not host.processes(TRIAL), host.name, 60)
        return True
    return False


@contextmanager
def running_cluster(folder: Path) -> Iterator[Cluster]:
    """Start the hosts with Ray, the store and MLflow. Nodes lack this package, and the laptop all but Ray."""
    node, ray, store = folder / "software" / "node", folder / "software" / "ray", ObjectStore(port=9001)
    hosts.compile_packages(PACKAGES)
    everything = {
        path.name for path in hosts.packages_folder().iterdir() if "attention_automl" not in path.name
    }
    hosts.make_python(node, everything - {*OWN, "tests"}, ray="ray.scripts.scripts")
    hosts.make_python(ray, hosts.find_required("ray[default]") & everything, ray="ray.scripts.scripts")
    common = {
        "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 4, "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0", "RAY_memory_monitor_refresh_ms": "0",
        "RAY_raylet_start_wait_time_s": "120", "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "180",
    }  # fmt: skip
    with Lab([sys.prefix, sys.base_prefix, ROOT / "tests", node.parent]) as lab:
        for name in (*RAY_HOSTS, "store", "laptop"):
            programs = {"laptop": ray, "store": Path(sys.prefix)}.get(name, node)
            keys = store.environment if name != "laptop" else {}
            lab.add(name).environment = {**common, **keys, "PATH": f"{programs}/bin:{os.environ['PATH']}"}
        cluster = Cluster(lab, folder, store.environment)
        serve(cluster.store, store)
        make_photographs(folder / "photos")
        with tarfile.open(folder / "photos.tgz", "w:gz") as archive:
            archive.add(folder / "photos", "photos")
        for package in OWN:
            shutil.copytree(ROOT / package, cluster.code_folder / package)
        make_noise(cluster.code_folder / "noise")
        for name, words in SPACES.items():
            space = SPACE.replace("DATA", words["DATA"]).replace("TRAINING", words["TRAINING"])
            (cluster.code_folder / f"{name}.py").write_text(space)
        cluster.start_ray()
        for address, *ports in (("127.0.0.1", 9001), (cluster.store.address, 9000, 5000)):
            probe = [sys.executable, "-c", LISTENS, address, *ports]
            until(lambda probe=probe: cluster.store.popen(*probe).wait() == 0, "the store", every=1)
        cluster.observe(SEND, folder / "photos.tgz")
        yield cluster


def serve(host: Host, store: ObjectStore) -> None:
    """Start the store behind its gate, and MLflow."""
    host.environment |= {
        "RCLONE_AUTH_KEY": f'"{store.key},{store.secret}"', "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"
    }  # fmt: skip
    host.popen(
        "rclone", "serve", "s3", "--addr", "127.0.0.1:9001", "--config", "/dev/null", ":memory:", log="s3"
    )
    host.popen(sys.executable, ROOT / "tests/helpers/hosts.py", 9000, 9001, "/tmp/home", log="gate")
    database = ["--backend-store-uri=sqlite:////tmp/home/mlflow.db", "--artifacts-destination=/tmp/home/a"]
    reached = ["--host", host.address, "--port", 5000, "--allowed-hosts", "*", "--workers", 1]
    host.popen("mlflow", "server", *reached, *database, log="mlflow")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if reason := hosts.why_not():
        pytest.skip(reason)
    with running_cluster(tmp_path_factory.mktemp("hosts")) as cluster:
        yield cluster


@dataclass
class Undisturbed:
    """The search that no fault has met. `scores` are by trial and epoch, and times in seconds."""

    scores: dict[int, list[Any]]
    epoch: float
    whole: float


def scores_of(records: list[Any]) -> dict[int, list[Any]]:
    return {
        number: [[m[key] for key in ("epoch", "loss", "accuracy")] for m in h] for number, *_, h in records
    }


def waits_of(records: list[Any]) -> list[list[tuple[float, float]]]:
    """For each trial the end of each epoch but the first, and the seconds since the end of the one before."""
    times = [[metrics["time"] for metrics in history] for *_, history in records]
    return [[(end, end - start) for start, end in pairwise(each)] for each in times]


@pytest.fixture(scope="module")
def undisturbed(cluster: Cluster) -> Undisturbed:
    return train_undisturbed(cluster)


def train_undisturbed(cluster: Cluster) -> Undisturbed:
    begun = time.monotonic()
    cluster.finish(cluster.search("undisturbed", "--seeds", SEEDS))
    whole = time.monotonic() - begun
    records = cluster.records("undisturbed")
    assert set(cluster.saves("undisturbed")) == set(RAY_HOSTS)
    assert cluster.find_flaws("undisturbed", records) == []
    epoch = statistics.median(seconds for waits in waits_of(records) for _, seconds in waits)
    return Undisturbed(scores_of(records), epoch, whole)


def cut_host(cluster: Cluster, host: Host, seconds: float) -> None:
    host.cut()
    time.sleep(seconds)
    host.join()


def freeze_host(cluster: Cluster, host: Host) -> None:
    host.freeze()
    time.sleep(60)
    host.thaw()


def disturb_store(cluster: Cluster, host: Host, mode: str) -> None:
    file = cluster.store.path("/tmp/home/mode")
    file.write_text(mode)
    time.sleep(60)
    file.write_text("open")


FAULTS: dict[str, Callable[[Cluster, Host], None]] = {
    "host killed": lambda cluster, host: host.kill(),
    "head killed": lambda cluster, host: cluster.head.kill(),
    "cut off for 120 s": partial(cut_host, seconds=120),
    "frozen for 60 s": freeze_host,
    "store refuses for 60 s": partial(disturb_store, mode="refuse"),
    "store slow for 60 s": partial(disturb_store, mode="slow"),
    "disk full": lambda cluster, host: host.fill(),
    "cut off for 10 s": partial(cut_host, seconds=10),
}
# Ray has all hosts after these faults. It gave up the victim of another, or that has lost its disk.
KEPT = ("head killed", "store refuses for 60 s", "store slow for 60 s", "cut off for 10 s")


@pytest.fixture(scope="module", params=range(TIMES))
def seed(request: pytest.FixtureRequest) -> str:
    """The seed of a round, which has each fault once."""
    return f"{os.environ.get('AUTOML_SEED', time.time_ns() % 10**6)}-{request.param}"


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_costs_time_and_nothing_else(
    cluster: Cluster, undisturbed: Undisturbed, fault: str, seed: str
) -> None:
    print(f"AUTOML_SEED={seed}")
    flaws = ["an error"]
    try:
        flaws = strike(cluster, undisturbed, fault, seed)
    finally:
        if flaws:  # the next test begins with a new cluster
            cluster.leave()
            cluster.stop_ray()
    assert flaws == []


def strike(cluster: Cluster, undisturbed: Undisturbed, fault: str, seed: str) -> list[str]:
    """Search while a fault strikes, write a line about it, and return what went wrong."""
    moments = random.Random(f"{seed} {fault}")
    cluster.start_ray()
    name, victim = f"{fault.replace(' ', '-')}-{cluster.jobs}", cluster.lab.hosts[moments.choice(WORKERS)]
    begun, job = time.monotonic(), cluster.search(name, "--seeds", SEEDS)
    until(lambda: victim.name in cluster.saves(name) or job.poll() is not None, f"{victim.name} trains")
    time.sleep(moments.uniform(0, 4 * undisturbed.epoch))
    assert job.poll() is None, cluster.log()
    struck = time.time()
    FAULTS[fault](cluster, victim)
    over = time.time()
    if fault == "head killed":
        cluster.leave()
        job.wait(60)
        cluster.stop_ray()
        cluster.start_ray()
        job = cluster.search(name, "--seeds", SEEDS)
    with suppress(subprocess.TimeoutExpired):
        job.wait(500)
    whole = time.monotonic() - begun
    if fault == "disk full":
        victim.path("/tmp/filler").unlink()
    records = cluster.records(name)
    flaws = cluster.find_flaws(name, records)
    if job.poll() != 0:
        flaws.insert(0, f"the job ended with {job.poll()}: {cluster.log()[-2000:]}")
    if scores_of(records) != undisturbed.scores:
        flaws.append("scores differ")
    lost = [  # by each trial, in epochs during the fault
        sum(seconds - undisturbed.epoch for end, seconds in waits if end > struck and end - seconds < over)
        for waits in waits_of(records)
    ]
    line = {
        "fault": fault,
        "complete": sum(state == "complete" for _, state, *_ in records),
        "doubled": len(records) - len({number for number, *_ in records}),
        "repeated": len(cluster.saves(name)) - sum(len(history) for *_, history in records),
        "lost": round(max(lost, default=0)),  # seconds of the trial that waited longest
        "seconds": [round(whole), round(undisturbed.whole)],
        "flaws": flaws,
    }
    print(json.dumps(line))
    if record := os.environ.get("HOSTS_RECORD"):
        with open(record, "a") as file:
            print(json.dumps(line), file=file)
    if fault not in KEPT:
        victim.kill()
    return flaws


def test_workers_on_two_hosts_train_as_one_process(cluster: Cluster) -> None:
    cluster.start_ray()
    precise = ["--precision", "fp32"]  # a CPU may train in bfloat16, of which two sums differ by more
    cluster.finish(cluster.search("one", *precise, space="gentle"))
    cluster.finish(cluster.search("two", *precise, "--workers-per-trial", 2, space="gentle"))
    alone, together = (scores_of(cluster.records(name)) for name in ("one", "two"))
    assert len(together) == 2
    for number, history in together.items():
        losses, expected = ([loss for _, loss, _ in each] for each in (history, alone[number]))
        assert losses == pytest.approx(expected, rel=1e-4)


def test_photographs_from_search_to_prediction(cluster: Cluster) -> None:
    """The laptop has a picture and the address of the store, which has the archive."""
    cluster.start_ray()
    shutil.copy(
        cluster.folder / "photos" / "validation" / "above" / "3.png", cluster.code_folder / "mine.png"
    )
    cluster.finish(cluster.submit("python", "-c", FETCH, cluster.storage("photos.tgz")))
    data = ["--data", "/tmp/home/photos.tgz", "--size", 32, "--batch-size", 16, "--trials", 6, "--epochs", 3]
    model = ["--backbone", "xresnet18", "--option", "width=0.25"]
    kept = ["--storage", cluster.storage()]
    cluster.finish(cluster.submit(*AUTOML, "search", *data, *model, "--name", "photos", *kept))
    assert set(cluster.saves("photos")) == set(RAY_HOSTS)
    kept = ["--search", "photos", *kept]
    assert "verdict" in cluster.finish(cluster.submit(*AUTOML, "confirm", *kept, "--top", 1, "--seeds", 6))
    cluster.finish(cluster.submit(*AUTOML, "report", *kept))
    export = shlex.join([*AUTOML, "export", "--best", *kept, "--out", "/tmp/home/exported"])
    predict = shlex.join([*AUTOML, "predict", "/tmp/home/exported", "mine.png"])
    log = cluster.finish(cluster.submit("sh", "-c", f"{export} && {predict}"))
    assert re.search("mine.png.*(above|below)", log), log

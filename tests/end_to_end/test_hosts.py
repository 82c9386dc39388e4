"""A cluster of hosts that share nothing but an object store and MLflow, used from a laptop, and faults of its hosts.

`make test-hosts` runs it: three hosts with Ray and one core each, one with the store, and the laptop, which has Ray and
nothing else. HOSTS_TIMES repeats each fault, each time at another moment of training; HOSTS_RECORD names a file that
gets a line of JSON for each.
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
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.helpers import hosts
from tests.helpers.hosts import Host, Lab, until
from tests.helpers.photographs import make_photographs
from tests.helpers.services import ObjectStore

pytestmark = [pytest.mark.slow("five hosts"), pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]
OWN = ("attention", "automl", "backbones", "cluster", "search")
TIMES = int(os.environ.get("HOSTS_TIMES", "1"))
WORKERS = ("host2", "host3")
RAY_HOSTS = ("host1", *WORKERS)
TRIAL = "ray::(TrialActor|ResourceTrainable|RayTrainWorker)"  # the process of a trial as Ray names it
SEEDS, EPOCHS = 3, 12

SPACE = f"""
from attention import Spec
from search.config import ImageData, ImageTraining, Model, TrialConfig


def cells(trial):
    name = trial.suggest_categorical("attention", ["none", "ssa"])
    return TrialConfig(
        data=ImageData(source="digits", size=32, subset=0.5),
        model=Model(
            backbone="xresnet18",
            options={{"width": 0.25}},
            placement={{}} if name == "none" else {{"stage2.block2": Spec(name)}},
        ),
        training=ImageTraining(epochs={EPOCHS}, batch_size=32),
    )


cells.baseline = cells.plain = {{"attention": "none"}}
"""

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
query = '''select n.value from tags n join tags p on n.run_uuid = p.run_uuid join tags s on s.run_uuid = p.value
    where n.key = 'automl.trial' and p.key = 'mlflow.parentRunId' and s.key = 'mlflow.runName' and s.value = ?'''
rows = sqlite3.connect("mlflow.db").execute(query, sys.argv[1:])
print(json.dumps(sorted(int(number) for (number,) in rows)))
"""
FETCH = """
import sys
from pyarrow.fs import FileSystem
files, path = FileSystem.from_uri(sys.argv[1])
open("/tmp/home/photos.tgz", "wb").write(files.open_input_file(path).read())
"""
MAKE_BUCKET = """
import sys
from pyarrow.fs import S3FileSystem
files = S3FileSystem(endpoint_override=sys.argv[1], scheme="http", allow_bucket_creation=True)
files.create_dir("automl")
if len(sys.argv) > 2:
    files.open_output_stream("automl/photos.tgz").write(open(sys.argv[2], "rb").read())
"""


@dataclass
class Cluster:
    """Hosts with Ray, `host1` as the head, a store with MLflow, and a laptop."""

    lab: Lab
    folder: Path
    keys: dict[str, str]
    jobs: int = 0
    code: str = "code"
    ray: dict[str, subprocess.Popen] = field(default_factory=dict)

    @property
    def head(self) -> Host:
        return self.lab.hosts["host1"]

    @property
    def code_folder(self) -> Path:
        return self.laptop.path(f"/tmp/home/{self.code}")

    @property
    def store(self) -> Host:
        return self.lab.hosts["store"]

    @property
    def laptop(self) -> Host:
        return self.lab.hosts["laptop"]

    def storage(self, path: str = "searches") -> str:
        return f"s3://automl/{path}?endpoint_override={self.store.address}:9000&scheme=http"

    def start_ray(self) -> None:
        """Start Ray on each host where it does not run, and the host, if it was killed."""
        for name in RAY_HOSTS:
            host = self.lab.hosts[name]
            if host.holder is None or host.holder.poll() is not None:
                host.start()
            if name not in self.ray or self.ray[name].poll() is not None:
                role = ["--head", "--port=6379", f"--dashboard-host={host.address}"]
                self.ray[name] = host.popen(
                    "ray", "start", "--block", *(role if name == "host1" else [f"--address={self.head.address}:6379"]),
                    f"--node-ip-address={host.address}", "--num-cpus=1", "--object-store-memory=100000000", log="ray.log",
                )  # fmt: skip
            if name == "host1":
                self.await_ray(name)
        for name in WORKERS:
            self.await_ray(name)

    def await_ray(self, name: str) -> None:
        log, process = self.lab.hosts[name].path("/tmp/home/ray.log"), self.ray[name]
        until(lambda: "Ray runtime started" in log.read_text() or process.poll() is not None, name)
        assert process.poll() is None, log.read_text()

    def stop_ray(self) -> None:
        """Unplug all hosts with Ray."""
        for name in RAY_HOSTS:
            self.lab.hosts[name].kill()
            self.ray[name].wait()

    def submit(self, *command: object) -> subprocess.Popen:
        """Send a job with the code on the laptop. The process prints its log and ends as it does."""
        self.jobs += 1
        return self.laptop.popen(
            "ray", "job", "submit", "--address", f"http://{self.head.address}:8265", "--working-dir", self.code,
            "--submission-id", f"job-{self.jobs}", "--", "env", f"MLFLOW_TRACKING_URI=http://{self.store.address}:5000",
            *command, log=f"job-{self.jobs}.log",
        )  # fmt: skip

    def search(self, name: str, *options: object) -> subprocess.Popen:
        return self.submit(
            "python", "-m", "automl.search", "--space", "cells.py:cells", "--sampler", "grid", "--equal", "epochs",
            "--name", name, "--storage", self.storage(), "--resume", "auto", *options,
        )  # fmt: skip

    def log(self, number: int | None = None) -> str:
        return self.laptop.path(f"/tmp/home/job-{number or self.jobs}.log").read_text()

    def finish(self, job: subprocess.Popen, patience: float = 500) -> str:
        """Wait for a job that ends well, and return its log."""
        job.wait(patience)
        assert job.returncode == 0, self.log()
        return self.log()

    def observe(self, code: str, *arguments: object) -> str:
        """Run Python in the network of the store, with the files of this machine."""
        network = ["nsenter", f"--target={self.store.pid}", "--net"]
        cache = self.folder / "cache"
        done = subprocess.run(
            [*network, sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, cwd=ROOT,
            env={**os.environ, **self.keys, "AUTOML_CACHE": str(cache)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def records(self, name: str) -> list:
        return json.loads(self.observe(READ, self.storage(), name))

    def saves(self, name: str) -> list[tuple[float, str, str]]:
        """Time, host and path of each checkpoint that was sent to the store."""
        names = {host.address: host.name for host in self.lab.hosts.values()}
        lines = [line.split() for line in self.store.path("/tmp/home/requests").read_text().splitlines()]
        return [
            (float(at), names.get(source, source), path)
            for at, source, method, path, mode in lines
            if method == "PUT" and f"/searches/{name}/" in path and re.search(r"checkpoint.pt($|\?partNumber=1&)", path) and mode != "refuse"
        ]

    def runs(self, name: str) -> list[int]:
        """The numbers of the trials that MLflow has of a search."""
        return json.loads(self.store.run(sys.executable, "-c", RUNS, name))


@contextmanager
def running_cluster(folder: Path) -> Iterator[Cluster]:
    """Start the hosts with Ray, the store and MLflow. Nodes lack this package, and the laptop all but Ray."""
    node, ray, store = folder / "software" / "node", folder / "software" / "ray", ObjectStore(port=9001)
    hosts.make_python(node, None, without=(*OWN, "tests"))
    hosts.make_python(ray, ["ray[default]"])
    common = {
        "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 4, "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0", "RAY_memory_monitor_refresh_ms": "0",
    }  # fmt: skip
    with Lab([sys.prefix, sys.base_prefix, ROOT / "tests", node.parent]) as lab:
        for name in (*RAY_HOSTS, "store", "laptop"):
            programs = {"laptop": ray, "store": Path(sys.prefix)}.get(name, node)
            keys = store.environment if name != "laptop" else {}
            lab.add(name).environment = {**common, **keys, "PATH": f"{programs}/bin:{os.environ['PATH']}"}
        cluster = Cluster(lab, folder, store.environment)
        serve(cluster.store, store)
        make_archive(folder)
        cluster.observe(MAKE_BUCKET, "127.0.0.1:9001", folder / "photos.tgz")
        for package in OWN:
            shutil.copytree(ROOT / package, cluster.code_folder / package, ignore=shutil.ignore_patterns("__pycache__"))
        (cluster.code_folder / "cells.py").write_text(SPACE)
        cluster.start_ray()
        yield cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if reason := hosts.why_not():
        pytest.skip(reason)
    with running_cluster(tmp_path_factory.mktemp("hosts")) as cluster:
        yield cluster


def serve(host: Host, store: ObjectStore) -> None:
    """Start the store behind its gate, and MLflow."""
    host.environment["RCLONE_AUTH_KEY"] = f'"{store.key},{store.secret}"'
    host.environment["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"
    host.popen("rclone", "serve", "s3", "--addr", "127.0.0.1:9001", "--config", os.devnull, ":memory:", log="s3.log")
    host.popen(sys.executable, ROOT / "tests" / "helpers" / "hosts.py", 9000, 9001, "/tmp/home", log="gate.log")
    host.popen(
        "mlflow", "server", "--host", host.address, "--port", 5000, "--workers", 1, "--allowed-hosts", "*",
        "--backend-store-uri", "sqlite:////tmp/home/mlflow.db", "--artifacts-destination", "/tmp/home/artifacts",
        log="mlflow.log",
    )  # fmt: skip
    listening = "import socket; [socket.create_connection(('{}', port), 1) for port in {}]".format
    probe = [*host.command(sys.executable, "-c", listening(host.address, (9000, 5000)))]
    until(lambda: subprocess.run(probe, capture_output=True).returncode == 0, "the store", every=1)
    probe = [*host.command(sys.executable, "-c", listening("127.0.0.1", (9001,)))]
    until(lambda: subprocess.run(probe, capture_output=True).returncode == 0, "rclone", every=1)


def make_archive(folder: Path) -> None:
    make_photographs(folder / "photos")
    with tarfile.open(folder / "photos.tgz", "w:gz") as file:
        file.add(folder / "photos", "photos")


@dataclass
class Undisturbed:
    """The search that no fault has met: scores by trial and epoch, and the seconds of an epoch."""

    scores: dict[int, list]
    epoch: float
    seconds: float


def scores_of(records: list) -> dict[int, list]:
    return {
        number: [(m["epoch"], m["loss"], m["accuracy"]) for m in history] for number, _, _, history in records
    }


def intervals(records: list) -> dict[int, list[float]]:
    """Seconds between the ends of two epochs, of each trial."""
    times = {number: [m["time"] for m in history] for number, _, _, history in records}
    return {
        number: [b - a for a, b in zip(each, each[1:], strict=False)] for number, each in times.items()
    }


@pytest.fixture(scope="module")
def undisturbed(cluster: Cluster) -> Undisturbed:
    return train_undisturbed(cluster)


def train_undisturbed(cluster: Cluster) -> Undisturbed:
    begun = time.monotonic()
    cluster.finish(cluster.search("undisturbed", "--seeds", SEEDS))
    seconds = time.monotonic() - begun
    records = cluster.records("undisturbed")
    assert {host for _, host, _ in cluster.saves("undisturbed")} == set(RAY_HOSTS)
    check_whole(cluster, "undisturbed", records)
    epoch = statistics.median(value for each in intervals(records).values() for value in each)
    return Undisturbed(scores_of(records), epoch, seconds)


def check_whole(cluster: Cluster, name: str, records: list) -> None:
    """Every trial once, to its end, with each epoch once, in the study and in MLflow; and nothing left."""
    assert [(number, state) for number, state, _, _ in records] == [(i, "complete") for i in range(2 * SEEDS)], records
    for *_, history in records:
        assert [m["epoch"] for m in history] == list(range(1, EPOCHS + 1))
    assert cluster.runs(name) == list(range(2 * SEEDS))
    for host in RAY_HOSTS:
        until(lambda host=host: not cluster.lab.hosts[host].processes(TRIAL), f"{host} is idle", 60)
        home = cluster.lab.hosts[host].path("/tmp/home")
        assert [path.name for path in home.rglob("*.tmp")] == []


@pytest.fixture(params=range(TIMES))
def moments(request: pytest.FixtureRequest) -> random.Random:
    seed = int(os.environ.get("AUTOML_SEED", time.time_ns() % 10**6))
    print(f"round {request.param}: AUTOML_SEED={seed}")
    return random.Random(seed)


# -- faults: each meets the host, waits, and makes good what an operator would


def killed(cluster: Cluster, host: Host) -> None:
    host.kill()


def cut(seconds: float) -> Callable[[Cluster, Host], None]:
    def fault(cluster: Cluster, host: Host) -> None:
        host.cut()
        time.sleep(seconds)
        host.join()

    return fault


def full(cluster: Cluster, host: Host) -> None:
    host.fill()


def frozen(cluster: Cluster, host: Host) -> None:
    host.freeze()
    time.sleep(60)
    host.thaw()


def store(mode: str) -> Callable[[Cluster, Host], None]:
    def fault(cluster: Cluster, host: Host) -> None:
        file = cluster.store.path("/tmp/home/mode")
        file.write_text(mode)
        time.sleep(60)
        file.write_text("open")

    return fault


def head_killed(cluster: Cluster, host: Host) -> None:
    cluster.head.kill()


FAULTS = {
    "killed": killed, "cut off for 10 s": cut(10), "cut off for 120 s": cut(120), "disk full": full,
    "frozen for 60 s": frozen, "head killed": head_killed, "store refuses for 60 s": store("refuse"),
    "store slow for 60 s": store("slow"),
}  # fmt: skip


@pytest.mark.parametrize("what", FAULTS)
def test_a_fault_costs_time_and_nothing_else(
    cluster: Cluster, undisturbed: Undisturbed, what: str, moments: random.Random
) -> None:
    cluster.start_ray()
    name = f"{what.replace(' ', '-')}-{cluster.jobs}"
    begun = time.monotonic()
    job = cluster.search(name, "--seeds", SEEDS)
    victim = cluster.lab.hosts[moments.choice(WORKERS)]

    def trains() -> bool:
        assert job.poll() is None, cluster.log()
        return any(host == victim.name for _, host, _ in cluster.saves(name))

    until(trains, f"{victim.name} trains")
    time.sleep(moments.uniform(0, 4 * undisturbed.epoch))
    struck = time.time()
    FAULTS[what](cluster, victim)
    if what == "head killed":
        assert job.wait(300) != 0
        cluster.stop_ray()
        cluster.start_ray()
        job = cluster.search(name, "--seeds", SEEDS)
    cluster.finish(job)
    seconds = time.monotonic() - begun
    if what == "disk full":
        victim.empty()
    records = cluster.records(name)
    lost = [
        max(0.0, value - undisturbed.epoch)
        for number, *_, history in records
        for value, m in zip(intervals(records)[number], history[1:], strict=False)
        if m["time"] > struck and value > 3 * undisturbed.epoch + 2
    ]
    saves = len(cluster.saves(name))
    line = {
        "fault": what, "trials": len(records), "complete": sum(state == "complete" for _, state, _, _ in records),
        "doubled": len(records) - len({number for number, *_ in records}), "saves": saves,
        "equal": scores_of(records) == undisturbed.scores, "waits": [round(value, 1) for value in lost],
        "seconds": round(seconds), "undisturbed": round(undisturbed.seconds), "host": victim.name,
    }  # fmt: skip
    print(json.dumps(line))
    if record := os.environ.get("HOSTS_RECORD"):
        with open(record, "a") as file:
            print(json.dumps(line), file=file)
    check_whole(cluster, name, records)
    assert scores_of(records) == undisturbed.scores


def test_workers_on_two_hosts_train_as_one_process(cluster: Cluster, undisturbed: Undisturbed) -> None:
    cluster.start_ray()
    cluster.finish(cluster.search("two", "--workers-per-trial", 2))
    records = cluster.records("two")
    assert [(number, state) for number, state, _, _ in records] == [(0, "complete"), (1, "complete")], records
    # A grid trains each cell with its first seed, then with the next.
    for number, together in scores_of(records).items():
        alone = undisturbed.scores[number]
        for (_, loss, _), (_, other, _) in zip(together, alone, strict=True):
            print(number, loss, other, loss / other - 1)
    first = [scores_of(records)[number][0][1] / undisturbed.scores[number][0][1] - 1 for number in (0, 1)]
    assert max(map(abs, first)) < 1e-4, first


def test_photographs_from_search_to_prediction(cluster: Cluster) -> None:
    """All is sent from the laptop, which has a picture and the address of the store."""
    cluster.start_ray()
    shutil.copy(cluster.folder / "photos" / "validation" / "above" / "3.png", cluster.code_folder / "mine.png")
    kept = ["--storage", cluster.storage()]
    automl = ["python", "-m", "automl"]
    cluster.finish(cluster.submit("python", "-c", FETCH, cluster.storage("photos.tgz")))
    cluster.finish(cluster.submit(
        *automl, "search", "--data", "/tmp/home/photos.tgz", "--name", "photos", *kept, "--size", 32, "--backbone",
        "xresnet18", "--option", "width=0.25", "--trials", 6, "--epochs", 3, "--batch-size", 16,
    ))  # fmt: skip
    assert {host for _, host, _ in cluster.saves("photos")} == set(RAY_HOSTS)
    named = ["--search", "photos", *kept]
    log = cluster.finish(cluster.submit(*automl, "confirm", *named, "--top", 1, "--seeds", 6))
    assert "verdict" in log
    cluster.finish(cluster.submit(*automl, "report", *named))
    export = [*automl, "export", "--best", *named, "--out", "/tmp/home/exported"]
    script = f"{shlex.join(export)} && {shlex.join(automl)} predict /tmp/home/exported mine.png"
    log = cluster.finish(cluster.submit("sh", "-c", script))
    assert re.search("mine.png.*(above|below)", log), log

import gc
import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import hypothesis
import pytest
import scipy.linalg  # noqa: F401 (its BLAS, whose threads are limited)
import torch
from mlflow import MlflowClient
from threadpoolctl import threadpool_limits

from automl.config.device import device_for, find_device, is_gpu
from automl.storage import metadata
from automl.storage.storage import Storage
from tests.helpers.durations import ByFile, Durations, read_record, select_quick, sort_by_scope, write_record
from tests.helpers.pairwise import select_pairwise
from tests.helpers.services import ObjectStore, serve_mlflow, serve_objects, serve_postgres

# Other load on the machine must not fail a test.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")

SCRIPT = Path(sys.executable).parent / "automl"
ON_CPU = "AUTOML_GPU_TESTS_ON_CPU"  # runs the tests marked `gpu` on the CPU, to try the tests themselves
MEMORY, ROOM = Path("/dev/shm"), 8 * 2**30  # a file system in memory, and the bytes that it must have left
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="run the tests that take less than 0.2 s")
    parser.addoption("--save-durations", action="store_true", help="write tests/helpers/durations.json")


def pytest_configure(config: pytest.Config) -> None:
    """Collect garbage less often, and keep files in memory, since both would take much of the tests' time.

    Over the objects of torch a sixth is garbage collection. On a disk, each commit of a database waits 20 ms.
    """
    gc.set_threshold(50_000, 20, 50)
    takes_programs = MEMORY.is_dir() and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC
    if takes_programs and shutil.disk_usage(MEMORY).free > ROOM:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
    config.pluginmanager.register(Durations(config), "durations")


def pytest_unconfigure(config: pytest.Config) -> None:
    if config.option.save_durations and not hasattr(config, "workerinput"):
        write_record(config)


def pytest_sessionstart(session: pytest.Session) -> None:
    if session.config.option.markexpr == "gpu" and not os.environ.get(ON_CPU) and not is_gpu(find_device()):
        pytest.exit("torch can use no GPU on this machine, so no test ran", returncode=0)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select cases and quick tests, skip slow ones without AUTOML_LONG=1, and sort files for `make test`."""
    if not os.environ.get("AUTOML_LONG"):
        items[:] = select_pairwise(items)
    for item in items:
        if (mark := item.get_closest_marker("slow")) is not None:
            if not mark.args:
                raise pytest.UsageError(f'{item.nodeid} is marked `slow` without a reason: slow("reason")')
            if not os.environ.get("AUTOML_LONG"):
                item.add_marker(pytest.mark.skip(reason=f"{mark.args[0]}; run with AUTOML_LONG=1"))
    known = read_record(config)
    if config.option.quick:
        select_quick(config, items, known)
    if hasattr(config, "workerinput"):  # one of several processes
        sort_by_scope(items, known)


def pytest_collection_finish() -> None:
    """Leave what is imported out of garbage collections, of which a whole one takes a second."""
    gc.freeze()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    return ByFile(config, log)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Use one thread: small layers wait for threads, and results must be the same bits."""
    torch.set_num_threads(1)
    threadpool_limits(1, user_api="blas")


@pytest.fixture(scope="session")
def gpu() -> torch.device:
    """Return the GPU of the tests marked `gpu`."""
    return device_for(0 if os.environ.get(ON_CPU) else 1)


@pytest.fixture(scope="session", autouse=True)
def surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use one cache for all tests, so that digits is decoded once, and no server or cluster of the user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOML_CACHE", str(tmp_path_factory.mktemp("cache")))
        # No pretrained weights, which would change what searches choose.
        patch.setenv("HF_HUB_OFFLINE", "1")
        for weights in ("TORCH_HOME", "HF_HOME"):
            patch.setenv(weights, str(tmp_path_factory.mktemp("weights")))
        patch.setattr("huggingface_hub.constants.HF_HUB_CACHE", os.environ["HF_HOME"])
        # At Ray's niceness, workers would get no time beside the processes of the tests.
        patch.setenv("RAY_worker_niceness", "0")
        patch.setenv("OMP_NUM_THREADS", "1")  # of commands that tests start, two at a time on two cores
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.delenv("RAY_AUTH_TOKEN", raising=False)
        for looked_up in ("_commit", "_version"):  # of each search, from git and from files
            patch.setattr(metadata, looked_up, cache(getattr(metadata, looked_up)))
        yield


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow database that has its tables and nothing in them: making them takes seconds."""
    file = tmp_path_factory.mktemp("store") / "mlflow.db"
    MlflowClient(f"sqlite:///{file}").search_experiments()
    return file


@pytest.fixture(scope="session")
def object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with serve_objects(tmp_path_factory.mktemp("store")) as store:
        yield store


@pytest.fixture(params=["local", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    """Return an empty storage: a folder, and a folder of the object store."""
    if request.param == "local":
        return Storage(str(tmp_path / "kept"))
    store: ObjectStore = request.getfixturevalue("object_store")
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    return Storage(store.address(f"searches/{tmp_path.name}"))


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of a PostgreSQL server."""
    with serve_postgres(tmp_path_factory.mktemp("postgres")) as address:
        yield address


@pytest.fixture(scope="session")
def mlflow_server(
    tmp_path_factory: pytest.TempPathFactory, database: str, object_store: ObjectStore
) -> Iterator[str]:
    """Yield the address of MLflow with runs in PostgreSQL and artifacts in an object store."""
    with serve_mlflow(
        tmp_path_factory.mktemp("mlflow"),
        *("server", "--host", "127.0.0.1", "--workers", 1),
        MLFLOW_BACKEND_STORE_URI=database,
        MLFLOW_ARTIFACTS_DESTINATION=f"s3://{object_store.bucket}/mlflow",
        MLFLOW_S3_ENDPOINT_URL=object_store.endpoint,
        **object_store.environment,
    ) as address:
        yield address


@pytest.fixture
def automl(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs the script in the test's folder: `automl("sites", "xresnet18")`."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [SCRIPT, *arguments],
            cwd=tmp_path,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run


@pytest.fixture
def bench(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the module of `benchmarks` that the test's module names `BENCH`."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
    return importlib.import_module(request.module.BENCH)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Yield a Chromium without a window, driven by playwright."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (make setup)")
    program = os.environ.get("AUTOML_BROWSER") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip(
            f"no browser; install one of {', '.join(BROWSERS)}, or set AUTOML_BROWSER to the path of one"
        )
    root = ["--no-sandbox"] if os.geteuid() == 0 else []
    with api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=program, args=root)
        yield browser
        browser.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a disk of 64 KB, too small for any dataset."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"a small disk needs root: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)

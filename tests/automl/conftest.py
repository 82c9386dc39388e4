import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from mlflow import MlflowClient
from PIL import Image

import automl.judge.trainings
import automl.search.driver
import automl.tracking.process
from automl.export.run_export import ExportResult, run_export
from automl.trials.train import TrainResult, run_train
from tests.helpers.automl_cases import HERE, TRAINED
from tests.helpers.confirm_cases import NoTracker
from tests.helpers.imitated_gpus import Driver, OnCpu, imitate_gpus


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a test its own cache folder, and return that."""
    monkeypatch.setenv("AUTOML_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("AUTOML_MIRROR", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def make_folder() -> Callable[..., Path]:
    """Return a function that writes random pictures: `{"train/cat": 3}` writes three of cats for training."""

    def make(root: Path, counts: Mapping[str, int]) -> Path:
        random = np.random.RandomState(0)
        for folder, count in counts.items():
            (root / folder).mkdir(parents=True)
            for i in range(count):
                pixels = random.randint(0, 256, (12, 16, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / folder / f"{i:04}.png")
        return root

    return make


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    """Two imitated GPUs, whose tensors are on the CPU."""
    driver = imitate_gpus(monkeypatch)
    with OnCpu():
        yield driver


@pytest.fixture
def store(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> MlflowClient:
    """The test's own MLflow store in its own folder, which is the current one; and a client of it."""
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    return MlflowClient()


@pytest.fixture(scope="session")
def workplace(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Path:
    """A folder with an MLflow store where a model with every attention was trained and exported."""
    folder = tmp_path_factory.mktemp("workplace")
    shutil.copy(empty_store, folder / "mlflow.db")
    return folder


@pytest.fixture(scope="session")
def trained(workplace: Path) -> TrainResult:
    """Return a model that recognises most digits."""
    with _inside(workplace):
        return run_train(TRAINED, runtime=HERE)


@pytest.fixture(scope="session")
def exported(workplace: Path, trained: TrainResult) -> ExportResult:
    """Return its export."""
    with _inside(workplace):
        return run_export("exports/model", run=trained.run_id)


@pytest.fixture
def at_work(workplace: Path) -> Iterator[Path]:
    """The current folder and store are those of `trained`."""
    with _inside(workplace):
        yield workplace


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'mlflow.db'}")
        yield


@pytest.fixture
def untracked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Confirmations without MLflow."""
    monkeypatch.setattr(automl.judge.trainings, "sync_later", lambda folder, storage: None)
    monkeypatch.setattr(automl.judge.trainings, "MlflowProcess", nullcontext)
    monkeypatch.setattr(automl.judge.trainings, "Tracker", NoTracker)


@pytest.fixture
def played(tmp_path: Path, untracked: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches and confirmations without Ray and MLflow, in an empty folder; `PlayedWorkers` train."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(automl.tracking.process, "_begin", lambda: (Mock(), Mock()))  # nothing imports MLflow
    monkeypatch.setattr(automl.search.driver, "MlflowProcess", lambda run_spec: nullcontext(Mock()))
    monkeypatch.setattr(automl.search.driver, "Tracker", NoTracker)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs a command in this process: its exit code, standard output and standard error."""
    from automl.cli.main import main

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main(arguments)
        output = capsys.readouterr()
        assert r"\n  " not in output.out + output.err, "lines that are printed as one"
        return int(end.value.code or 0), output.out, output.err

    return run

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.helpers.killable import AUTOML, Search


@pytest.fixture
def automl(tmp_path: Path, empty_store: Path) -> Callable[..., str]:
    """Run the installed script in the test's folder and MLflow, and return its output."""
    shutil.copy(empty_store, tmp_path / "mlflow.db")

    def run(*arguments: object) -> str:
        done = subprocess.run(
            [*AUTOML, *map(str, arguments)],
            cwd=tmp_path,
            env={**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path / 'mlflow.db'}"},
            capture_output=True,
            text=True,
            timeout=500,
        )
        assert done.returncode == 0, done.stderr
        return done.stderr + done.stdout

    return run


@pytest.fixture(scope="session")
def gpus_per_trial(gpu: torch.device) -> Callable[[float], list[str]]:
    """Return a function from a share of a GPU to the options of trials with it."""
    return lambda gpus: [] if gpu.type == "cpu" else ["--gpus-per-trial", str(gpus)]


@pytest.fixture
def new_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Search]]:
    """Return a function that makes a search `killed` with these options in the test's folder and MLflow."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    searches: list[Search] = []

    def make(*options: object) -> Search:
        searches.append(Search(tmp_path, "killed", options))
        return searches[-1]

    yield make
    for search in searches:
        search.end()

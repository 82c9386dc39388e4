import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.helpers.killable import AUTOML


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

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

AUTOML = Path(sys.executable).parent / "automl"


@pytest.fixture
def automl(tmp_path: Path) -> Callable[..., str]:
    """Run the installed script in the test's folder and MLflow, and return its output."""

    def run(*arguments: object) -> str:
        done = subprocess.run(
            [AUTOML, *map(str, arguments)],
            cwd=tmp_path,
            env={**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path / 'mlflow.db'}"},
            capture_output=True,
            text=True,
            timeout=500,
        )
        assert done.returncode == 0, done.stderr
        return done.stderr + done.stdout

    return run

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

AUTOML = Path(sys.executable).parent / "automl"

# Files of two minutes and more come first, so that at the end neither process waits long for the other.
LONGEST = ("test_planted_truth.py", "test_any_model.py", "test_ray_job.py", "test_studies.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONGEST)


@pytest.fixture
def automl(tmp_path: Path) -> Callable[..., str]:
    """What the installed script says and prints, run to a good end in the test's folder and its MLflow."""

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

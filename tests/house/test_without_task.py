"""The acid test of tasks as folders: without some of them, everything else works."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from search.config import TASKS

ROOT = Path(__file__).parents[2]
# Tasks without commands of their own on the command line and in the API.
NAMES = [name.replace("-", "_") for name, spec in TASKS.items() if spec.models or spec.detect]
# Tests of what asks all tasks: their declarations, spaces, configurations, data, studies and commands.
ASKING = (
    "tests/automl/task/test_register_task.py",
    "tests/search/test_space_loading.py",
    "tests/search/test_trial_config.py",
    "tests/automl/tasks/test_tasks.py",
)


@pytest.mark.parametrize(
    "names",
    [
        ",".join(NAMES[::4]),
        *(pytest.param(name, marks=pytest.mark.slow("another case")) for name in NAMES),
    ],
)
def test_the_rest_works_without_tasks(names: str) -> None:
    run = subprocess.run(
        [sys.executable, ROOT / "scripts" / "without_task.py", names, *ASKING],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-1000:]

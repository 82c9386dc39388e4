"""A verdict that neighbours cannot fake: a search and its confirmation beside two busy processes.

An attention module in a model that has trained for one epoch adds no score and costs 5 % of the time.
A program that takes a ratio of times under load for the truth gives it half as many steps again, worth a lot.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from search.study import read_records

AUTOML = Path(sys.executable).parent / "automl"


@pytest.fixture
def neighbours() -> Iterator[None]:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    yield
    for process in busy:
        process.kill()
        process.wait()


@pytest.mark.slow("a whole search")
@pytest.mark.usefixtures("neighbours")
def test_load_is_not_called_a_gain(tmp_path):
    def automl(*arguments):
        run = subprocess.run(
            [AUTOML, *arguments],
            cwd=tmp_path,
            env={**os.environ, "AUTOML_CACHE": str(tmp_path / "cache")},  # nothing is known of the machine
            capture_output=True,
            text=True,
            timeout=500,
        )
        assert run.returncode == 0, run.stderr
        return run

    automl("search", "--space", "digits", "--trials", "3", "--epochs", "1", "--seed", "3", "--name", "busy")
    run = automl("confirm", "--top", "1", "--seeds", "6", "--json")
    verdict = json.loads(run.stdout)
    assert verdict["complete"]
    assert verdict["verdict"] != "better", verdict["figures"]

    folder = tmp_path / "searches" / "busy"
    records = read_records(folder, "busy") + read_records(folder / "confirm", "busy-confirm")
    paces = []
    for record in records:
        kinds = [spec.type for spec in record.config.model.placement.values()]
        if kinds == ["ssa"] and record.config.training.batch_size == 64:
            paces.append((record.profile["time_ratio"], record.profile["time_ratio_counted"]))
    assert paces
    assert all(is_estimated or 1.0 <= time_ratio <= 1.15 for time_ratio, is_estimated in paces), paces

    # The reported time is that of the trainings.
    low, high = verdict["time"]["interval"]
    assert f"({low:.2f} to {high:.2f}) of the baseline's" in verdict["cost"]

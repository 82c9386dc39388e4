"""Commands of one machine: what is imported before the first, what a kill leaves, and when Ray runs them."""

import multiprocessing
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from automl.config.nouns import Place
from automl.tasks.command.referee import run_referee
from automl.trials import session

SCRIPT = """
import os, random, subprocess, sys
seed, gain = int(sys.argv[1]), float(sys.argv[2])
with open("runs", "a") as runs:
    print(gain, seed, file=runs)
child = subprocess.Popen(["sleep", "300" if os.path.exists("hang") else "0.1"])
child.wait()
print("accuracy", random.Random(seed).random() + gain)
"""
OPTIONS = {"metric": "accuracy (.*)", "any_time": True, "name": "mine"}
HEAVY = {"ray", "torch", "optuna", "mlflow", "scipy"}
FIRST = f"""
import os, sys
from automl.tasks.command.referee import run_referee
from automl.trials import session
def train(job):
    print(sorted({HEAVY} & sys.modules.keys()), job.folder, flush=True)
    os._exit(0)
session.train = train
run_referee("true {{seed}}", "false {{seed}}", **{OPTIONS})
"""


def compare(**options: object) -> None:
    baseline, candidate = (f"{shlex.quote(sys.executable)} -S train.py {{seed}} {gain}" for gain in (0, 1))
    options = {"baseline": baseline, "candidates": candidate, **OPTIONS, **options}
    assert run_referee(**options).verdict.final == "better"


def test_a_first_command_needs_none_of_the_large_packages(tmp_path: Path) -> None:
    program = [sys.executable, "-c", FIRST]
    printed = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert printed.stdout.split(maxsplit=1)[0] == "[]", printed
    assert printed.stdout.strip().endswith("mine/confirm/trials/0000")


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow("another case"))]
)
def test_a_signal_leaves_no_process_and_no_run_is_repeated(
    number: signal.Signals, played: None, tmp_path: Path
) -> None:
    Path("train.py").write_text(SCRIPT)
    runs = Path("runs")
    driver = multiprocessing.get_context("fork").Process(target=compare)
    driver.start()

    def wait_for_runs(count: int) -> None:
        while not (runs.exists() and len(runs.read_text().splitlines()) >= count):
            assert driver.is_alive()
            time.sleep(0.01)

    wait_for_runs(4)
    Path("hang").touch()  # the children of later runs would outlive this test
    wait_for_runs(len(runs.read_text().splitlines()) + 1)
    assert driver.pid is not None
    os.kill(driver.pid, number)
    driver.join()
    left = [process for process in psutil.process_iter() if _runs_in(process, tmp_path)]
    assert psutil.wait_procs(left, timeout=60)[1] == []
    Path("hang").unlink()
    before = len(runs.read_text().splitlines())
    assert run_referee(resume="mine").verdict.final == "better"
    assert before < len(runs.read_text().splitlines()) <= 16 + 2 * (os.cpu_count() or 1)


def _runs_in(process: psutil.Process, folder: Path) -> bool:
    """Return whether another process has this current folder."""
    try:
        return process.pid != os.getpid() and process.cwd() == str(folder)
    except psutil.Error:
        return False


@pytest.mark.parametrize(
    ("place", "variables", "expected"),
    [
        ({}, {}, True),
        ({"cpus_per_trial": 2, "gpus_per_trial": 0, "concurrent": 1}, {}, True),
        ({}, {"RAY_ADDRESS": "127.0.0.1:6379"}, False),
        ({"gpus_per_trial": 0.5}, {}, False),
        ({"resource": ["licence=1"]}, {}, False),
        ({"label": ["zone=a"]}, {}, False),
    ],
)
def test_ray_runs_commands_that_ask_for_it(
    place: dict[str, object], variables: dict[str, str], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(session, "may_have_gpu", lambda: False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert session.suffices(Place(**place)) == expected  # type: ignore[arg-type]
    monkeypatch.setattr(session, "may_have_gpu", lambda: True)
    assert session.suffices(Place(**place)) == (expected and "gpus_per_trial" in place)  # type: ignore[arg-type]

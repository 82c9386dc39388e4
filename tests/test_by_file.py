"""The scheduler of `make test`, with a process that dies."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = """
from by_file import ByFile


def pytest_xdist_make_scheduler(config, log):
    return ByFile(config, log)
"""
PASSES = "def test_{}():\n    pass\n\n\n"
DIES = "def test_dies():\n    import os\n\n    os._exit(1)\n\n\n"


@pytest.mark.parametrize(
    ("files", "passed"),
    [
        (["first second", "dies third"], 3),  # a file that has ended; one test is left
        (["dies", "first"], 1),  # nothing is left of the file
        (["first dies second third", "fourth"], 4),
    ],
)
def test_a_dead_process_costs_its_test_alone(tmp_path: Path, files: list[str], passed: int) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for i, names in enumerate(files):
        tests = [DIES if name == "dies" else PASSES.format(name) for name in names.split()]
        (tmp_path / f"test_{i}.py").write_text("".join(tests))
    command = [sys.executable, "-m", "pytest", "-n1", "--dist=loadfile", "--no-loadscope-reorder", "-q"]
    folder = str(Path(__file__).parent)
    command += ["-p", "no:cacheprovider", "-o", f"pythonpath={folder}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert f"1 failed, {passed} passed" in done.stdout
    assert re.search(r"crashed while running '.*::test_dies'", done.stdout), done.stdout

"""The suite itself: its scheduler with a process that dies, its limits, and the faults that it must find."""

import os
import re
import subprocess
import sys
from collections import Counter
from itertools import combinations, product
from pathlib import Path

import pytest

from tests.helpers.durations import SHARED
from tests.helpers.pairwise import choose_cases

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts"))

import mutants  # noqa: E402

CONFTEST = """
from tests.helpers import durations
from tests.helpers.durations import ByFile, Durations
from tests.helpers.pairwise import select_pairwise

durations.TEST = durations.FIXTURE = {limit}
durations.TOTAL = 20 * {limit}
durations.LIBRARIES = ()


def pytest_xdist_make_scheduler(config, log):
    return ByFile(config, log)


def pytest_configure(config):
    config.pluginmanager.register(Durations(config), "durations")


def pytest_collection_modifyitems(items):
    items[:] = select_pairwise(items)
"""
PRODUCT = """
import pytest


@pytest.fixture(params=["a", "b"])
def kind(request):
    pass


@pytest.mark.parametrize("x", [1.5, 2.5, 3.5])
@pytest.mark.parametrize("y", [True, False])
def test_product(x, y, kind):
    pass


@pytest.mark.parametrize(("x", "y", "z"), [(x, y, z) for x in "ab" for y in "ab" for z in "ab"])
def test_list(x, y, z):
    pass
"""
PASSES = "def test_{}():\n    pass\n\n\n"
DIES = "def test_dies():\n    import os\n\n    os._exit(1)\n\n\n"
WORKS = """
import time

import pytest


@pytest.fixture(scope="module")
def prepared():
    work()


def work():
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass


def test_works():
    work()


def test_prepares(prepared):
    pass


@pytest.mark.heavy("the main job")
def test_is_named():
    work()
"""


def run(folder: Path, *options: str, limit: float = 1.0, **environment: str) -> str:
    (folder / "conftest.py").write_text(CONFTEST.format(limit=limit))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", f"pythonpath={ROOT}"]
    done = subprocess.run(
        [*command, "-o", "markers=heavy", *options],
        cwd=folder,
        env={**os.environ, "AUTOML_LIMITS": "", **environment},
        capture_output=True,
        text=True,
        timeout=100,
    )
    return f"{done.stdout}\nexit status {done.returncode}"


@pytest.mark.parametrize(
    ("files", "passed"),
    [
        (["first second", "dies third"], 3),  # a file that has ended; one test is left
        (["dies", "first"], 1),  # nothing is left of the file
        (["first dies second third", "fourth"], 4),
    ],
)
def test_a_dead_process_costs_its_test_alone(tmp_path: Path, files: list[str], passed: int) -> None:
    for i, names in enumerate(files):
        tests = [DIES if name == "dies" else PASSES.format(name) for name in names.split()]
        (tmp_path / f"test_{i}.py").write_text("".join(tests))
    output = run(tmp_path, "-n1", "--dist=loadfile", "--no-loadscope-reorder")
    assert f"1 failed, {passed} passed" in output
    assert re.search(r"crashed while running '.*::test_dies'", output), output


@pytest.mark.parametrize("options", [(), ("-n1",)], ids=["one process", "two"])
def test_slow_tests_fail_where_there_are_limits(tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "test_0.py").write_text(WORKS)
    assert "exit status 0" in run(tmp_path, *options, limit=0.02)
    output = run(tmp_path, *options, limit=0.02, AUTOML_LIMITS="1")
    assert "3 passed" in output
    assert "all tests took" in output
    assert "exit status 1" in output
    assert set(re.findall(r"^(\S+) took", output, re.M)) == {"test_0.py::test_works", "prepared"}


def test_limits_and_faults_are_listed() -> None:
    files = [file for file in (ROOT / "tests").rglob("*.py") if file.parent.name != "house"]
    assert sum(file.read_text().count("mark.heavy(") for file in files) <= 25
    assert {*SHARED} <= {file.name for file in files}
    assert {*Counter(mutant.name for mutant in mutants.MUTANTS).values()} == {1}
    assert len(mutants.MUTANTS) >= 40
    sizes = {"spec": 42, "shape": 3, "layout": 2, "training": 2}
    cases = [dict(zip(sizes, values, strict=True)) for values in product(*map(range, sizes.values()))]
    kept = [cases[i] for i in choose_cases(cases)]
    assert len(kept) <= 42 * 4 < len(cases)
    for first, second in combinations(sizes, 2):
        assert len({(case[first], case[second]) for case in kept}) == sizes[first] * sizes[second]
    two = [{"a": i, "b": j, "c": j} for i in range(3) for j in range(4)]
    assert len(choose_cases(two)) == len(two), "two parameters are their pairs"


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.name)
def test_each_fault_can_be_made(mutant: mutants.Mutant) -> None:
    assert (ROOT / mutant.file).read_text().count(mutant.text) == 1
    assert all((ROOT / test).exists() for test in mutant.tests.split())


def test_a_product_is_reduced_and_a_list_is_not(tmp_path: Path) -> None:
    (tmp_path / "test_0.py").write_text(PRODUCT)
    assert f"{3 * 2 + 8} passed" in run(tmp_path)

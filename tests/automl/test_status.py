"""How a search stands, seen from beside it."""

import json
import time
from pathlib import Path

import pytest
from confirm_cases import CONV, FOUND, SSA, fake_search, record
from filelock import FileLock

from automl.status import read_status
from search.record import State

BROKEN = record(4, 0.5, SSA, state=State.PRUNED)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    now = time.time()
    timed = [record(i, 0.7 + i / 100, [None, SSA, CONV][i]) for i in range(3)]
    for i, one in enumerate(timed):
        one.history[0] |= {"time": now - 100 + 20 * i, "seconds": 1800.0}
    return fake_search(tmp_path / "searches", [*timed, BROKEN])


def test_what_is_told(folder: Path) -> None:
    found = read_status()
    assert (found.search, found.running, found.trials) == ("mine", False, 6)
    assert (found.states["complete"], found.states["pruned"], found.states["running"]) == (3, 1, 0)
    assert found.best == ("002 xresnet18 conv1x1@stage1.block1", 0.72)
    assert found.baseline == ("000 xresnet18 plain", 0.70)
    assert found.quiet == pytest.approx(60, abs=20)
    assert found.hours == pytest.approx(1.5, abs=0.01)
    assert found.left is None
    assert found.lines()[-1] == "next      automl search --resume mine"


def test_beside_the_process_that_runs_it(folder: Path) -> None:
    with FileLock(folder / ".lock"):
        found = read_status("mine")
    assert found.running
    assert found.left == pytest.approx(40 / 4 * 2)
    assert "running" in found.lines()[0]
    assert "about 20s left" in found.lines()[-1]


def test_the_command(folder: Path, cli) -> None:
    code, out, _ = cli("status", "--json")
    assert code == 0
    *lines, last = out.splitlines()
    assert lines[1] == "trials    4 of 6 ended (3 complete, 1 pruned)"
    assert json.loads(last)["states"]["complete"] == 3


def test_no_search(tmp_path: Path, cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "there is no search in searches" in cli("status")[2]
    fake_search(tmp_path / "searches", FOUND)
    code, _, err = cli("status", "other")
    assert code == 2
    assert "no search called 'other' in searches; there are mine" in err

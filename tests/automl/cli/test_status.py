"""`automl status`."""

import json
import shlex
import time
from pathlib import Path

import pytest
from filelock import FileLock

import automl.trials.session
from automl.base.errors import InputError
from automl.judge.run_confirm import run_confirm
from automl.search.status import list_searches, read_status
from automl.storage.folder import old_folder
from automl.storage.storage import Storage
from automl.trials.session import Stopped
from search.record import State
from tests.helpers.confirm_cases import CONV, RECORDS, SSA, FakeWorkers, fake_search, record

BROKEN = record(4, 0.5, SSA, state=State.PRUNED)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    now = time.time()
    timed = [record(i, 0.7 + i / 100, [None, SSA, CONV][i]) for i in range(3)]
    for i, trial in enumerate(timed):
        trial.history[0] |= {"time": now - 100 + 20 * i, "seconds": 1800.0, "steps": 7 - i}
    return fake_search(tmp_path / "searches", [*timed, BROKEN])


def test_status_of_a_stopped_search(folder: Path) -> None:
    status = read_status()
    assert (status.search, status.running, status.trials) == ("mine", False, 6)
    assert (status.states["complete"], status.states["pruned"], status.states["running"]) == (3, 1, 0)
    assert status.best == ("002 xresnet18(width=0.25) conv1x1 @ stage1.block1", 0.72)
    assert status.baseline == ("000 xresnet18(width=0.25) plain", 0.70)
    assert 59 < status.quiet < 600
    assert status.hours == pytest.approx(1.5, abs=0.01)
    assert status.left is None
    assert status.lines()[0].startswith("search    mine: stopped, ")
    assert status.lines()[2:4] == [
        "best      accuracy 72 % after 5 steps  002 xresnet18(width=0.25) conv1x1 @ stage1.block1",
        "baseline  accuracy 70 % after 7 steps  000 xresnet18(width=0.25) plain",
    ]
    assert status.lines()[-1] == "next      automl search --resume mine"


def test_status_of_a_running_search(folder: Path) -> None:
    with FileLock(folder / ".lock"):
        status = read_status("mine")
    assert status.running
    assert status.left == pytest.approx((3 * 1800 + 1) / 4 * 2), "as the ended trials took"
    assert status.lines()[0].startswith("search    mine: running, ")
    assert "about 45m00s left" in status.lines()[-1]


NIGHT = 8 * 3600.0


@pytest.mark.parametrize(("slots", "left"), [(0, 3 * 60), (1, 2.5 * 190 / 3.5), (2, 1.5 * 200 / 4)])
def test_remaining_time_counts_training_only(slots: int, left: float, tmp_path: Path) -> None:
    trials = [record(i, 0.7, None if i == 0 else SSA) for i in range(3)]
    running = [record(3 + i, 0.5, CONV, state=State.RUNNING) for i in range(slots)]
    for trial in (*trials, *running):
        seconds = 60.0 if trial in trials else 10.0
        trial.history[0] |= {"time": time.time() - (NIGHT if trial is trials[0] else 0), "seconds": seconds}
    for trial in running:
        trial.history[0]["resource"] = 0.5
    folder = fake_search(tmp_path, [*trials, *running])
    with FileLock(folder / ".lock"):
        assert read_status("mine", str(tmp_path)).left == pytest.approx(left, abs=1)


def test_running_trial_without_a_process_is_interrupted(tmp_path: Path) -> None:
    running = [record(i, 0.5, CONV, state=State.RUNNING) for i in (4, 5)]
    folder = fake_search(tmp_path, [*RECORDS, *running])
    status = read_status("mine", str(tmp_path))
    assert (status.state, status.states["interrupted"], status.states["running"]) == ("stopped", 2, 0)
    assert status.lines()[1] == "trials    4 of 6 ended (4 complete, 2 interrupted)"
    assert status.lines()[-1] == f"next      automl search --resume mine --storage {tmp_path}"
    with FileLock(folder / ".lock"):
        status = read_status("mine", str(tmp_path))
    assert (status.state, status.states["interrupted"], status.states["running"]) == ("running", 0, 2)
    assert status.lines()[1] == "trials    4 of 6 ended (2 running, 4 complete)"


@pytest.mark.parametrize("storage", ["local"], indirect=True)
@pytest.mark.parametrize("how", ["gone", "empty"])
@pytest.mark.parametrize("running", [False, True])
def test_lost_study(how: str, running: bool, storage: Storage) -> None:
    folder = fake_search(storage)
    (storage / "mine" / RECORDS[0].folder).write("checkpoint.pt", b"")
    with old_folder("mine", str(storage)):
        (folder / "study.journal").unlink()
        if how == "empty":
            (folder / "study.journal").touch()
        status = read_status("mine", str(storage)) if running else None
    status = status or read_status("mine", str(storage))
    assert (status.state, status.ended, status.best) == ("lost", 0, None)
    assert status.lines()[1:] == [
        "trials    unknown: study.journal is missing or empty, but trials were started",
        "next      restore study.journal from a backup, or delete the search: "
        f"automl remove mine --storage {shlex.quote(str(storage))}",
    ]
    assert status.to_json()["running"] is False


def test_search_without_trials_is_not_lost(tmp_path: Path) -> None:
    folder = fake_search(tmp_path, [])
    (folder / "study.journal").unlink()
    assert read_status("mine", str(tmp_path)).state == "stopped"


def test_finished_search(tmp_path: Path) -> None:
    fake_search(tmp_path, [*RECORDS, record(4, 0.5, SSA), record(5, 0.5, CONV)])
    status = read_status("mine", str(tmp_path))
    assert (status.state, status.outcome) == ("finished", None)
    assert not any(line.startswith("next") for line in status.lines())


def test_command(folder: Path, cli) -> None:
    code, out, err = cli("status", "--json")
    first, *lines = err.splitlines()
    assert (code, first) == (0, "the latest search in searches is mine")
    assert lines[1] == "trials    4 of 6 ended (3 complete, 1 pruned)"
    assert json.loads(out)["states"]["complete"] == 3


@pytest.mark.parametrize("records", [RECORDS, [*RECORDS, record(4, 0.5, SSA), record(5, 0.5, CONV)]])
@pytest.mark.usefixtures("untracked")
def test_status_of_a_confirmation(
    records, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = fake_search(tmp_path, records)
    storage = str(tmp_path)

    def run(most: int, *, seeds: int = 6, again: bool = False) -> str:
        workers = FakeWorkers(
            lambda variant, seed: 0.9 + 0.02 * variant.startswith("ssa") + seed / 1e4, most=most
        )
        monkeypatch.setattr(automl.trials.session, "open_workers", workers.open)
        try:
            run_confirm("mine", top=1, seeds=seeds, storage=storage, again=again)
        finally:
            output = capsys.readouterr().err
        return output

    with pytest.raises(Stopped):
        run(most=10)
    status = read_status("mine", storage)
    assert (status.state, status.outcome) == ("stopped", "unfinished")
    assert status.lines()[-1] == f"next      automl confirm --search mine --storage {storage}"
    with FileLock(folder / ".lock"):
        assert read_status("mine", storage).state == "confirming"
    run(most=100)
    status = read_status("mine", storage)
    assert (status.state, status.outcome) == ("stopped" if len(records) < 6 else "finished", "better")
    with FileLock(folder / ".lock"):
        assert read_status("mine", storage).state == "running"
    with pytest.raises(Stopped):
        run(most=3, again=True)
    (row,) = list_searches(storage)
    assert (row.state, row.verdict) == ("stopped", "better"), "an unfinished one leaves the verdict before it"
    with pytest.raises(InputError, match="--seeds must be 6 or more"):
        run(most=100, seeds=4, again=True)
    output = run(most=100, again=True)
    unfinished = (
        "finalists are chosen among its 4 trials so far. To complete it first: automl search --resume"
    )
    assert (unfinished in output) == (len(records) < 6)

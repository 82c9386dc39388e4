"""`automl searches`."""

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

import automl.report.run_report
import automl.trials.session
from automl.base.errors import InputError
from automl.cli.folder_commands import searches_table
from automl.export import run_export as export
from automl.export.chosen import Chosen
from automl.judge.run_confirm import run_confirm
from automl.report.read import read_search
from automl.search.status import list_searches, read_status
from automl.storage.folder import old_folder
from automl.storage.metadata import write_metadata
from automl.storage.storage import Storage
from automl.trials.session import Stopped
from search.record import State
from tests.helpers import others_slow
from tests.helpers.automl_cases import Cli
from tests.helpers.confirm_cases import CONV, RECORDS, SSA, FakeWorkers, fake_search, record

WHOLE = [*RECORDS, record(4, 0.5, SSA), record(5, 0.5, CONV)]


def test_searches_are_sorted_by_last_use(storage: Storage) -> None:
    for name in ("a", "b", "c"):
        fake_search(storage, name=name)
    (storage / ".data").write("images", b"")
    with old_folder("b", str(storage)):
        pass
    (storage / "b" / "trials/0001").write("checkpoint.pt", bytes(2_000_000))
    listed = list_searches(str(storage))
    assert [search.name for search in listed] == ["b", "c", "a"]
    assert listed[0].age <= listed[1].age <= listed[2].age
    assert listed[0].size > 2_000_000 > listed[1].size > 1000


@pytest.mark.parametrize(
    ("records", "locked", "state", "trials"),
    [
        (RECORDS, False, "stopped", "4/6"),
        (RECORDS, True, "running", "4/6"),
        ([*RECORDS, record(4, 0.5, SSA, state=State.RUNNING)], False, "stopped", "4/6"),
        (WHOLE, False, "finished", "6/6"),
    ],
)
def test_row_of_a_search(records, locked: bool, state: str, trials: str, tmp_path: Path) -> None:
    folder = fake_search(tmp_path, records)
    if locked:
        with FileLock(folder / ".lock"):
            (listed,) = list_searches(str(tmp_path))
    else:
        (listed,) = list_searches(str(tmp_path))
    heading, line = searches_table([listed])
    assert heading.split() == ["name", "space", "state", "trials", "best", "verdict", "age", "size"]
    assert line.split()[:5] == ["mine", "digits", state, trials, "85%"]
    assert (listed.problem, listed.verdict, listed.metric) == (None, None, "accuracy")


def test_damaged_searches_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli("searches", "--json") == (0, "[]\n", "no searches\n")
    for name in ("a", "b", "c", "d"):
        fake_search(Path("searches"), name=name)
    (tmp_path / "searches/a/search.json").write_text("{")
    study = tmp_path / "searches/b/study.journal"
    study.write_text("{\n" + study.read_text())
    (tmp_path / "searches/c/trials").mkdir()
    (tmp_path / "searches/c/study.journal").unlink()
    for name, days in (("a", 4), ("b", 3), ("c", 2), ("d", 1)):
        for file in (tmp_path / "searches" / name).glob("s*"):
            os.utime(file, (os.stat(file).st_mtime - 86400 * days,) * 2)
    code, out, err = cli("searches", "--json")
    assert code == 0
    lines = err.splitlines()
    assert lines[1].split()[:4] == ["d", "digits", "stopped", "4/6"]
    assert lines[2].split()[:3] == ["c", "digits", "lost"]
    assert [line.split()[:2] for line in (lines[3], lines[5])] == [["b", "damaged"], ["a", "damaged"]]
    assert f"line 1 of {study} is damaged" in lines[4]
    assert "search.json is corrupt or in an unsupported format" in lines[6]
    assert [line.split()[-2] for line in (lines[1], lines[2], lines[3], lines[5])] == ["1d", "2d", "3d", "4d"]
    values = json.loads(out)
    assert [value["state"] for value in values] == ["stopped", "lost", "damaged", "damaged"]
    assert values[0]["best"] == 0.85


Acts = Callable[[str], str]


def confirmed(storage: str) -> str:
    return run_confirm(storage=storage).search


def reported(storage: str) -> str:
    return read_search(None, storage).metadata.name


def shown_by_status(storage: str) -> str:
    return read_status(storage=storage).search


def listed(storage: str) -> str:
    return list_searches(storage)[0].name


def exported(storage: str) -> str:
    return str(export.run_export("out", best=True, storage=storage).chosen.search)


@pytest.mark.usefixtures("store", "untracked")
@pytest.mark.parametrize("storage", ["local"], indirect=True)
def test_all_commands_use_the_search_that_was_used_last(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    workers = FakeWorkers(lambda variant, seed: 0.9 + 0.001 * (seed % 3) + 0.02 * variant.startswith("ssa"))
    monkeypatch.setattr(automl.trials.session, "open_workers", workers.open)
    monkeypatch.setattr(export, "_export", fake_export)
    address = str(storage)
    for name in ("older", "newer"):
        fake_search(storage, name=name)
        for trial in RECORDS:
            (storage / name / trial.folder).write("checkpoint.pt", b"")
    assert [act(address) for act in (reported, shown_by_status, listed, exported)] == ["newer"] * 4
    with old_folder("older", address) as (folder, metadata):  # as `--resume` does
        write_metadata(folder, replace(metadata, plan=replace(metadata.plan, trials=8)))
    assert [act(address) for act in (reported, shown_by_status, listed, exported)] == ["older"] * 4
    run_confirm("newer", top=1, seeds=6, storage=address)
    run_confirm("older", top=1, seeds=6, storage=address)
    acts: list[Acts] = [reported, shown_by_status, listed, exported, confirmed]
    capsys.readouterr()
    for act in acts:
        assert act(address) == "older", act
        err = capsys.readouterr().err
        assert err.count(f"the latest search in {address} is older\n") == (act is not listed)
    run_confirm("newer", storage=address)
    assert shown_by_status(address) == "newer", "the verdict was requested again"


def fake_export(out: Any, chosen: Chosen, trust: bool) -> export.ExportResult:
    if not chosen.checkpoint.exists("checkpoint.pt"):
        raise InputError("there is no checkpoint")
    return export.ExportResult(
        folder=out, chosen=chosen, differences={}, test={}, scores=None, speeds={}, machine="here"
    )


BROKEN = record(4, 0.5, SSA, state=State.PRUNED)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    now = time.time()
    timed = [record(i, 0.7 + i / 100, [None, SSA, CONV][i]) for i in range(3)]
    for i, trial in enumerate(timed):
        trial.history[0] |= {"time": now - 100 + 20 * i, "seconds": 1800.0, "steps": 7 - i}
    return fake_search(tmp_path / "searches", [*timed, BROKEN])


def test_status_of_stopped_and_running_searches(folder: Path, cli: Cli) -> None:
    code, out, err = cli("status", "--json")
    first, *lines = err.splitlines()
    assert (code, first) == (0, "the latest search in searches is mine")
    assert lines[1] == "trials    4 of 6 ended (3 complete, 1 pruned)"
    assert json.loads(out)["states"]["complete"] == 3
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
        "next      restore study.journal from a backup, or delete the search with its folder",
    ]
    assert status.to_json()["running"] is False


def test_searches_without_trials_or_with_all(tmp_path: Path) -> None:
    folder = fake_search(tmp_path, [])
    (folder / "study.journal").unlink()
    assert read_status("mine", str(tmp_path)).state == "stopped"
    fake_search(tmp_path / "all", [*RECORDS, record(4, 0.5, SSA), record(5, 0.5, CONV)])
    status = read_status("mine", str(tmp_path / "all"))
    assert (status.state, status.outcome) == ("finished", None)
    assert not any(line.startswith("next") for line in status.lines())


@pytest.mark.parametrize(
    "records", others_slow([RECORDS, [*RECORDS, record(4, 0.5, SSA), record(5, 0.5, CONV)]], RECORDS)
)
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

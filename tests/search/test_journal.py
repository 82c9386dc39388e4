"""The journal of a study: its file, batches of writes, full disks and damaged lines."""

import errno
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import BaseJournalBackend, JournalFileBackend

from automl.base.errors import InputError
from search.journal import truncate_incomplete_line
from search.optuna_internals import Journal, batch_writes

Make = Callable[[Path], BaseJournalBackend]


def study_in(backend: BaseJournalBackend) -> optuna.Study:
    return optuna.create_study(study_name="s", storage=JournalStorage(backend), load_if_exists=True)


def some_trials(study: optuna.Study) -> None:
    for value in (0.5, 0.25):
        trial = study.ask()
        trial.suggest_float("x", 0, 1)
        with batch_writes(study):
            trial.set_user_attr("epoch:1", {"loss": value})
            trial.report(value, step=1)
        study.tell(trial, value)


def test_the_file_equals_that_of_optuna(tmp_path: Path) -> None:
    lines = []
    for name, make in {"ours": Journal, "optuna's": lambda path: JournalFileBackend(str(path))}.items():
        study = study_in(make(tmp_path / name))
        study.sampler = optuna.samplers.RandomSampler(seed=0)
        some_trials(study)
        content = (tmp_path / name).read_text()
        changes = [json.loads(line) for line in content.splitlines()]
        assert content == "".join(json.dumps(change, separators=(",", ":")) + "\n" for change in changes)
        changing = ("worker_id", "datetime_start", "datetime_complete")
        lines.append([{key: change[key] for key in change if key not in changing} for change in changes])
    assert lines[0] == lines[1]


@pytest.mark.parametrize(
    "reader", [Journal, lambda path: JournalFileBackend(str(path))], ids=["ours", "optuna"]
)
def test_other_processes_read_the_changes_so_far(reader: Make, tmp_path: Path) -> None:
    study = study_in(Journal(tmp_path / "file"))
    other = study_in(reader(tmp_path / "file"))
    for number in range(3):
        trial = study.ask()
        assert len(other.trials) == number + 1
        with batch_writes(study):
            trial.set_user_attr("a", 1)
            trial.report(0.5, step=1)
            assert study.trials[number].intermediate_values == {1: 0.5}, "the writer knows it already"
            assert not other.trials[number].user_attrs
        assert other.trials[number].user_attrs == {"a": 1}
        assert other.trials[number].intermediate_values == {1: 0.5}


def test_changes_before_an_error_in_a_block_are_written(tmp_path: Path) -> None:
    study = study_in(Journal(tmp_path / "file"))
    trial = study.ask()
    with suppress(RuntimeError), batch_writes(study):
        trial.set_user_attr("a", 1)
        raise RuntimeError
    assert study_in(Journal(tmp_path / "file")).trials[0].user_attrs == {"a": 1}


def test_a_full_disk_leaves_no_half_line(small_disk: Path) -> None:
    file = small_disk / "file"
    study = study_in(Journal(file))
    trial = study.ask()
    trial.set_user_attr("much", "x" * 40000)
    before = file.read_bytes()
    with pytest.raises(OSError, match="No space left"):
        trial.set_user_attr("more", "x" * 40000)
    assert file.read_bytes() == before
    subprocess.run(["mount", "-o", "remount,size=256k", small_disk], check=True)
    trial.set_user_attr("again", 1)
    attributes = study_in(Journal(file)).trials[0].user_attrs
    assert attributes == {"much": "x" * 40000, "more": "x" * 40000, "again": 1}


def test_writes_reach_the_disk_within_a_lag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[int] = []
    full = threading.Event()

    def flush(file: int) -> None:
        if full.is_set():
            raise OSError(errno.EDQUOT, "Disk quota exceeded")  # as a network's file system may say it then
        flushed.append(os.fstat(file).st_size)

    monkeypatch.setattr("search.optuna_internals.LAG", 0.05)
    monkeypatch.setattr(os, "fsync", flush)
    file = tmp_path / "file"
    journal = Journal(file)
    for number in range(3):
        for _ in range(20):
            journal.append_logs([{"number": number}])
        assert until(lambda: flushed and flushed[-1] == file.stat().st_size)
    assert len(flushed) < 30, "not one for each of 60"
    full.set()
    journal.append_logs([{"number": 3}])
    assert until(lambda: journal._trouble)
    with pytest.raises(OSError, match="quota"):
        journal.append_logs([{"number": 4}])
    journal.append_logs([{"number": 5}])
    assert [log["number"] for log in Journal(file).read_logs(60)] == [3, 4, 5], "nothing is lost"


def until(condition: Callable[[], object]) -> bool:
    end = time.monotonic() + 30
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return bool(condition())


def test_an_incomplete_line_is_read_once_complete_and_reading_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "file"
    some_trials(study_in(Journal(file)))
    os.utime(file, (1, 1))
    optuna.load_study(study_name="s", storage=JournalStorage(Journal(file)))
    assert file.stat().st_mtime == 1
    assert list(tmp_path.iterdir()) == [file]
    lines = file.read_bytes().splitlines(keepends=True)
    other = Journal(tmp_path / "other")
    (tmp_path / "other").write_bytes(b"".join(lines[:-1]) + lines[-1][:10])
    assert len(list(other.read_logs(0))) == len(lines) - 1
    (tmp_path / "other").write_bytes(b"".join(lines))
    assert list(other.read_logs(len(lines) - 1)) == [json.loads(lines[-1])]
    assert list(other.read_logs(2)) == [json.loads(line) for line in lines[2:]], (
        "and from the beginning again"
    )


def test_a_damaged_line_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b'{"op_code":0}\n' + b"\x00" * 40 + b'"}\n{"op_code":1}\n')
    journal = Journal(file)
    for _ in range(2):
        with pytest.raises(InputError, match=r"line 2 of .*file is damaged .*; restore a copy"):
            list(journal.read_logs(0))
    before = file.read_bytes()
    truncate_incomplete_line(file)
    assert file.read_bytes() == before, "what is good in it is not for us to delete"

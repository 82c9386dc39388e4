import errno
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import BaseJournalBackend, JournalFileBackend

from search.journal import Journal, at_once

Make = Callable[[Path], BaseJournalBackend]


def study_in(backend: BaseJournalBackend) -> optuna.Study:
    return optuna.create_study(study_name="s", storage=JournalStorage(backend), load_if_exists=True)


def some_trials(study: optuna.Study) -> None:
    for value in (0.5, 0.25):
        trial = study.ask()
        trial.suggest_float("x", 0, 1)
        with at_once(study):
            trial.set_user_attr("epoch:1", {"loss": value})
            trial.report(value, step=1)
        study.tell(trial, value)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The size of the file at each time that it is flushed."""
    sizes: list[int] = []
    original = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (original(file), sizes.append(os.fstat(file).st_size)))
    return sizes


def test_the_file_is_the_one_that_optuna_makes(tmp_path: Path) -> None:
    lines = []
    for name, make in {"ours": Journal, "optuna's": lambda path: JournalFileBackend(str(path))}.items():
        study = study_in(make(tmp_path / name))
        study.sampler = optuna.samplers.RandomSampler(seed=0)
        some_trials(study)
        content = (tmp_path / name).read_text()
        told = [json.loads(line) for line in content.splitlines()]
        assert content == "".join(json.dumps(one, separators=(",", ":")) + "\n" for one in told)
        changing = ("worker_id", "datetime_start", "datetime_complete")
        lines.append([{key: one[key] for key in one if key not in changing} for one in told])
    assert lines[0] == lines[1]


@pytest.mark.parametrize(
    "reader", [Journal, lambda path: JournalFileBackend(str(path))], ids=["ours", "optuna"]
)
def test_others_read_what_is_written_so_far(reader: Make, tmp_path: Path) -> None:
    study = study_in(Journal(tmp_path / "file"))
    other = study_in(reader(tmp_path / "file"))
    for number in range(3):
        trial = study.ask()
        assert len(other.trials) == number + 1
        with at_once(study):
            trial.set_user_attr("a", 1)
            trial.report(0.5, step=1)
            assert study.trials[number].intermediate_values == {1: 0.5}, "the writer knows it already"
            assert not other.trials[number].user_attrs
        assert other.trials[number].user_attrs == {"a": 1}
        assert other.trials[number].intermediate_values == {1: 0.5}


def test_a_block_is_one_write(tmp_path: Path, written: list[int]) -> None:
    study = study_in(Journal(tmp_path / "file"))
    trial = study.ask()
    written.clear()
    with at_once(study):
        for number in range(5):
            trial.set_user_attr(str(number), number)
        with at_once(study):
            trial.report(0.5, step=1)
    assert written == [(tmp_path / "file").stat().st_size]
    with at_once(study):
        pass
    assert len(written) == 1, "nothing to write"
    trial.set_user_attr("alone", 1)
    assert len(written) == 2


def test_what_a_block_had_when_it_broke_is_written(tmp_path: Path) -> None:
    study = study_in(Journal(tmp_path / "file"))
    trial = study.ask()
    with suppress(RuntimeError), at_once(study):
        trial.set_user_attr("a", 1)
        raise RuntimeError
    assert study_in(Journal(tmp_path / "file")).trials[0].user_attrs == {"a": 1}


@pytest.mark.parametrize("half", [0, 1, 20])
def test_a_full_disk_leaves_no_half_line(half: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    study = study_in(Journal(file))
    trial = study.ask()
    before = file.read_bytes()

    def full(descriptor: int) -> None:
        os.truncate(file, len(before) + half)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            trial.set_user_attr("a", 1)
    assert file.read_bytes() == before
    trial.set_user_attr("b", 2)  # there is room again
    assert study_in(Journal(file)).trials[0].user_attrs == {"a": 1, "b": 2}


def test_a_line_that_is_being_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "file"
    some_trials(study_in(Journal(file)))
    lines = file.read_bytes().splitlines(keepends=True)
    other = Journal(tmp_path / "other")
    (tmp_path / "other").write_bytes(b"".join(lines[:-1]) + lines[-1][:10])
    assert len(list(other.read_logs(0))) == len(lines) - 1
    (tmp_path / "other").write_bytes(b"".join(lines))
    assert list(other.read_logs(len(lines) - 1)) == [json.loads(lines[-1])]
    assert list(other.read_logs(2)) == [json.loads(line) for line in lines[2:]], (
        "and from the beginning again"
    )


def test_a_damaged_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b'{"op_code": 0\n')
    with pytest.raises(ValueError, match="delimiter"):
        list(Journal(file).read_logs(0))


def test_in_memory_a_block_is_nothing_special() -> None:
    study = optuna.create_study()
    some_trials(study)
    assert len(study.trials) == 2

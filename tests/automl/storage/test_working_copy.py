"""The working copy of a search in an object store, with a real S3 server."""

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import optuna
import pytest
from filelock import FileLock, Timeout

from automl.base.errors import InputError
from automl.storage import working_copy
from automl.storage.storage import Storage
from automl.storage.working_copy import NOTE, folder_of, is_written, update, writing
from search.study import create_study, open_study
from tests.helpers.services import ObjectStore


@pytest.fixture
def location(object_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    """Return the location of a search in the store. Changes are copied at short intervals."""
    for name, value in object_store.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(working_copy, "PERIOD", 0.05)
    monkeypatch.setattr(working_copy, "BEAT", 0.2)
    monkeypatch.setattr(working_copy, "SILENCE", 1.0)
    monkeypatch.setattr(working_copy, "PATIENCE", 2.0)
    return Storage(object_store.address(f"searches/{tmp_path.name}/mine"))


def soon(true: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not true():
        if time.monotonic() > until:
            raise TimeoutError("not within a minute")
        time.sleep(0.05)


def make(folder: Path, name: str, text: str) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


def test_changes_reach_the_store_and_another_machine(location: Storage, tmp_path: Path) -> None:
    here, other_copy = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    with writing(location, here):
        make(here, "search.json", "{}")
        soon(lambda: location.exists("search.json"))
        make(here, "confirm/verdict.json", "1")
        make(here, "confirm/verdict.json.123", "half")
        make(here, "ray/tune/state", "x")
        make(here, "report/index.html", "x")
        make(here, "trials/0001/checkpoint.pt", "x")
        make(here, ".lock", "")
        assert is_written(location)
    assert not is_written(location)
    assert location.files().keys() == {"search.json", "confirm/verdict.json", NOTE}
    update(location, other_copy)
    assert (other_copy / "confirm" / "verdict.json").read_text() == "1"
    make(other_copy, "report/index.html", "y")
    # Changed files are copied again, and deleted files are deleted.
    with writing(location, here):
        make(here, "confirm/verdict.json", "22")
        (here / "search.json").unlink()
    update(location, other_copy)
    assert (other_copy / "confirm" / "verdict.json").read_text() == "22"
    assert not (other_copy / "search.json").exists()
    assert (other_copy / "report" / "index.html").read_text() == "y", "a report stays where it was made"


def test_copies_are_complete_and_kept(location: Storage, tmp_path: Path) -> None:
    here, other_copy = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    with writing(location, here):
        study = create_study(here, name="mine", direction=optuna.study.StudyDirection.MAXIMIZE)
        for number in range(40):
            study.add_trial(optuna.trial.create_trial(value=number))
            if number % 10 == 9:
                time.sleep(0.2)
                update(location, other_copy)
                assert open_study(other_copy, name="mine").trials
    update(location, other_copy)
    assert [t.value for t in open_study(other_copy, name="mine").trials] == list(range(40))
    here = tmp_path / "here"
    with writing(location, here):
        make(here, "log.txt", "1")
    make(here, "log.txt", "what a killed driver had not sent")
    with writing(location, here):
        assert (here / "log.txt").read_text() == "what a killed driver had not sent"
    assert location.read("log.txt") == b"what a killed driver had not sent"
    # After another process has written to the store, its files replace the copy.
    with writing(location, tmp_path / "there"):
        make(tmp_path / "there", "log.txt", "resumed")
    with writing(location, here):
        assert (here / "log.txt").read_text() == "resumed"


def test_file_that_is_deleted_while_it_is_copied_is_left_out(
    location: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location.write("search.json", b"{}")
    listed = {**location.files(), "trials/0000/epoch.json": "9 1"}
    monkeypatch.setattr(Storage, "files", lambda self: listed)
    update(location, tmp_path / "copy")
    assert [path.name for path in (tmp_path / "copy").rglob("*.json")] == [".copy.json", "search.json"]


def test_unlisted_file_of_a_killed_writer_is_kept(location: Storage, tmp_path: Path) -> None:
    with writing(location, tmp_path / "here"):
        make(tmp_path / "here", "log.txt", "1")
    location.write(NOTE, json.dumps({**json.loads(location.read(NOTE)), "files": {}}).encode())
    with writing(location, tmp_path / "there"):
        assert (tmp_path / "there" / "log.txt").read_text() == "1"
    assert location.read("log.txt") == b"1"


def test_a_copy_is_updated_by_one_process_at_a_time(
    location: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, reads = working_copy._read_note, list[Storage]()

    def note(of: Storage) -> object:
        with pytest.raises(Timeout):
            FileLock(tmp_path / ".update.lock").acquire(timeout=0)
        reads.append(of)
        return read(of)

    monkeypatch.setattr(working_copy, "_read_note", note)
    update(location, tmp_path)
    assert reads == [location]


def test_second_writer_is_rejected(location: Storage, tmp_path: Path) -> None:
    with (
        writing(location, tmp_path / "here"),
        pytest.raises(InputError, match=r"is running in another process"),
        writing(location, tmp_path / "there"),
    ):
        pass


OTHER = textwrap.dedent(
    """
    import sys, time
    from pathlib import Path
    from automl.storage import working_copy
    from automl.storage.storage import Storage
    working_copy.PERIOD, working_copy.BEAT = 0.05, 0.2
    with working_copy.writing(Storage(sys.argv[1]), Path(sys.argv[2])):
        (Path(sys.argv[2]) / "log.txt").write_text("mine")
        print("writing", flush=True)
        time.sleep(600)
    """
)


@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_killed_writer_is_replaced(
    where: str,
    location: Storage,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = [sys.executable, "-c", OTHER, str(location), str(tmp_path / "there")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=dict(os.environ)) as other:
        other.stdout.readline()
        soon(lambda: location.exists("log.txt"))
        other.kill()
    assert is_written(location)
    if where == "elsewhere":
        monkeypatch.setattr(socket, "gethostname", lambda: "another")
    with writing(location, tmp_path / "here"):
        assert (tmp_path / "here" / "log.txt").read_text() == "mine"
    assert ("waiting" in capsys.readouterr().err) == (where == "elsewhere")


def test_replaced_writer_stops(location: Storage, tmp_path: Path) -> None:
    command = [sys.executable, "-c", OTHER, str(location), str(tmp_path / "there")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ)
    ) as other:
        other.stdout.readline()
        other.send_signal(signal.SIGSTOP)
        with writing(location, tmp_path / "here"):
            make(tmp_path / "here", "log.txt", "resumed")
            other.send_signal(signal.SIGCONT)
            _, err = other.communicate(timeout=60)
    assert other.returncode == -signal.SIGTERM
    assert "is running in another process" in err
    assert location.read("log.txt") == b"resumed"


def test_unavailable_store_is_retried(
    location: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    away = True
    write = Storage.write

    def fail(self: Storage, name: str, content: bytes) -> None:
        if away and name == "log.txt":
            raise OSError("no route")
        write(self, name, content)

    with writing(location, tmp_path / "here"):
        monkeypatch.setattr(Storage, "write", fail)
        make(tmp_path / "here", "log.txt", "1")
        time.sleep(0.5)
        away = False
        soon(lambda: location.exists("log.txt"))
        away = True
        make(tmp_path / "here", "log.txt", "2")
    assert "warning" in (err := capsys.readouterr().err)
    assert str(tmp_path / "here") in err
    assert (tmp_path / "here" / "log.txt").read_text() == "2"


def test_missing_store_and_damaged_note(location: Storage, object_store: ObjectStore, tmp_path: Path) -> None:
    gone = Storage(str(location).replace(str(object_store.port), "9"))
    with pytest.raises(InputError, match="cannot be reached"), writing(gone, tmp_path / "here"):
        pass
    location.write(NOTE, b"{")
    with pytest.raises(InputError, match="is damaged"), writing(location, tmp_path / "here"):
        pass


def test_each_search_has_a_separate_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AUTOML_CACHE", str(tmp_path))
    folder = folder_of(Storage("s3://bucket/searches/one?region=us-east-1"))
    assert folder == tmp_path / "searches" / "s3-bucket-searches" / "one"

"""Damaged files of a search: each command names the file, without a traceback or incomplete output."""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from automl.base.errors import InputError
from automl.cli.folder_commands import searches_table
from automl.export.chosen import choose
from automl.judge.protocol import Confirmation
from automl.judge.scheduler import ConfirmationScheduler
from automl.report.read import read_search
from automl.search.run_search import resume_search
from automl.search.status import list_searches, read_status
from automl.storage.folder import find_search
from automl.storage.metadata import SEARCH_FILE
from automl.tracking.run_spec import flat, search_run_spec
from search.record import State
from search.study import STUDY_FILE, read_records
from tests.helpers.confirm_cases import RECORDS, SSA, fake_confirmation, fake_search, record

STUDY, CONFIRM, VERDICT = f"confirm/{STUDY_FILE}", "confirm/confirm.json", "confirm/verdict.json"
FILES = (SEARCH_FILE, STUDY_FILE, STUDY, CONFIRM, VERDICT)


def _synced() -> None:
    """Read the files that `automl sync` reads."""
    folder, metadata = find_search("mine", "searches")
    search_run_spec(metadata.location, metadata)
    for trial in read_records(folder, metadata.name, metadata.plan.needed):
        flat(trial.config)
    section = folder / "confirm"
    ConfirmationScheduler(section, metadata, Confirmation.read(section), retry=False).update(False)


READERS: Mapping[str, Callable[[], object]] = {
    "status": lambda: read_status("mine").lines(),
    "searches": lambda: _list("mine"),
    "report": lambda: read_search("mine", "searches"),
    "export": lambda: choose("mine", "searches"),
    "baseline": lambda: choose("mine", "searches", baseline=True),
    "sync": _synced,
}


def _list(name: str) -> None:
    """Raise the problem of the listed search. The other search is always listed."""
    listed = {listed_search.name: listed_search for listed_search in list_searches()}
    searches_table(list(listed.values()))
    assert listed["good"].state == "stopped"
    if listed[name].state == "damaged":
        raise InputError(str(listed[name].problem))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a storage with two searches. `mine` is confirmed."""
    storage = tmp_path_factory.mktemp("whole") / "searches"
    fake_search(storage, name="good")
    folder = fake_search(storage, [*RECORDS, record(4, 0.5, SSA, state=State.RUNNING)])
    fake_confirmation(folder)
    for trials in (folder / "trials", folder / "confirm/trials"):
        for number in range(30):
            (trials / f"{number:04}").mkdir(parents=True)
            (trials / f"{number:04}/checkpoint.pt").touch()
    return storage


@pytest.fixture
def mine(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(whole, "searches")
    return tmp_path / "searches/mine"


def readings(readers: Sequence[str] = tuple(READERS)) -> dict[str, str]:
    """Return the messages of the commands that read a damaged file."""
    messages = {}
    for name in readers:
        try:
            READERS[name]()
        except InputError as error:
            messages[name] = str(error)
    return messages


def test_intact_files_are_read(mine: Path) -> None:
    assert readings() == {}


# Content of damaged files.
ANY: Mapping[str, bytes] = {
    "empty": b"",
    "cut short": b'{"format": 1, "ide',
    "no UTF-8": b'{"format": 1, "\xff\xfe": 1}\n',
    "zeros": b"\0" * 4096 + b"\n",
    "a list": b"[]\n",
    "other keys": b'{"op_code": 99, "format": 7}\n',
    "nested too deeply": b"[" * 100_000 + b"]" * 100_000 + b"\n",
    "nested deeply": b'{"a":' * 90 + b"1" + b"}" * 90 + b"\n",
    "a huge number": b"1" * 10_000 + b"\n",
}


@pytest.mark.parametrize("file", FILES)
def test_damaged_file_is_named(file: str, mine: Path) -> None:
    for damage, content in ANY.items():
        (mine / file).write_bytes(content)
        messages = readings()
        assert messages or (damage, file) == ("empty", STUDY_FILE), damage  # `status` reports it as lost
        assert all(str(mine / file) in why for why in messages.values()), (damage, messages)
    for make in (Path.mkdir, os.mkfifo):
        (mine / file).unlink()
        make(mine / file)
        assert all(f"{mine / file} is no file" in why for why in readings().values())
        shutil.rmtree(mine / file) if (mine / file).is_dir() else None
        (mine / file).touch()


Values = dict[str, Any]


def lines(file: Path) -> list[Values]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def write_lines(file: Path, changes: Sequence[Values]) -> None:
    file.write_text("".join(f"{json.dumps(change, separators=(',', ':'))}\n" for change in changes))


# Number of a line of the study, its damaged content, and the message about it.
LINES: Mapping[str, tuple[int, Callable[[Values], Any], str]] = {
    "an unknown operation": (3, lambda line: line.update(op_code=99), "no search writes the operation 99"),
    "an unknown trial": (3, lambda line: line.update(trial_id=7), "trial 7, which no line before it creates"),
    "a trial that has ended": (8, lambda line: line.update(trial_id=0), "changes trial 0, which has ended"),
    "no scores": (6, lambda line: line.update(values=None), "values must be 1 numbers; got null"),
    "an unknown key": (2, lambda line: line["user_attrs"]["config"].update(zzz=1), "unknown key 'zzz'"),
    "an unknown metric": (2, lambda line: line["user_attrs"]["config"].update(metric="x"), "metric 'x'"),
    "a metric that is gone": (
        3, lambda line: line["user_attr"]["epoch:1"].pop("accuracy"), "accuracy is missing",
    ),
}  # fmt: skip


OF_CONFIGURATIONS = {"no configuration", "an unknown key", "an unknown metric"}


@pytest.mark.parametrize("damage", LINES)
def test_damaged_line_of_a_study_is_named(damage: str, mine: Path) -> None:
    number, change, reason = LINES[damage]
    changes = lines(mine / STUDY_FILE)
    change(changes[number - 1])
    write_lines(mine / STUDY_FILE, changes)
    messages = readings()
    # The list of searches reads no configurations.
    listed = set() if damage in OF_CONFIGURATIONS else {"searches"}
    assert messages.keys() == {"status", "report", "sync"} | listed
    for why in messages.values():
        assert f"line {number} of {mine / STUDY_FILE} is damaged" in why
        assert reason in why
    with pytest.raises(InputError, match=f"line {number} of .* is damaged"):
        resume_search("mine")


@pytest.mark.parametrize(
    "rest", [b"", b"{", b'{"op_code":8,"worker_id":"a', b"\0" * 9, b'{"op_code":8\0\0'], ids=repr
)
def test_incomplete_last_line_is_accepted(rest: bytes, mine: Path) -> None:
    """The last line is incomplete, or the file is empty if it was the first line."""
    with open(mine / STUDY_FILE, "ab") as file:
        file.write(rest)
    assert readings() == {}
    shutil.rmtree(mine / "confirm")
    (mine / STUDY_FILE).write_bytes(rest)
    assert read_status("mine").state == "lost", "there are checkpoints of its trials"
    shutil.rmtree(mine / "trials")
    status = read_status("mine")
    assert (status.state, status.ended) == ("stopped", 0)


# Valid JSON with a wrong value, by file and key.
WRONG: Mapping[tuple[str, ...], Sequence[Any]] = {
    (SEARCH_FILE, "plan", "budget"): [float("nan"), float("inf"), 0, "1", None],
    (SEARCH_FILE, "plan", "metric", "name"): ["bogus", "", 3],
    (SEARCH_FILE, "settings", "name"): ["../x", "a\nb"],
    (SEARCH_FILE, "settings", "seed"): [-1, "x"],
    (SEARCH_FILE, "settings"): [3, {}],
    (SEARCH_FILE, "format"): [99],
    (CONFIRM, "options", "margin"): [float("nan"), "x"],
    (CONFIRM, "variant_set", "variants"): [[], None, [3]],
    (VERDICT, "outcome"): ["king", 3],
    (VERDICT, "variants"): [3, [3], [{"name": "x"}]],
    (VERDICT, "finalist"): ["x", 3],
}  # fmt: skip


# Commands that together read the whole file.
QUICKEST = {SEARCH_FILE: ["status"], CONFIRM: ["sync"], VERDICT: ["report", "status"]}


def wrong() -> Iterator[tuple[str, tuple[str, ...], Any]]:
    for (file, *keys), values in WRONG.items():
        for value in values:
            yield file, tuple(keys), value


def test_wrong_value_is_reported(mine: Path) -> None:
    for file, keys, value in wrong():
        good = (mine / file).read_text()
        content = json.loads(good)
        section = content
        for key in keys[:-1]:
            section = section[key]
        section[keys[-1]] = value
        (mine / file).write_text(json.dumps(content))
        messages = readings(QUICKEST[file])
        assert messages, (file, keys, value)
        assert all(str(mine / file) in why or "study.journal" in why for why in messages.values()), messages
        (mine / file).write_text(good)

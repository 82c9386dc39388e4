"""`automl searches`."""

import json
import os
from pathlib import Path

import pytest
from filelock import FileLock

from automl.cli.folder_commands import searches_table
from automl.search.status import list_searches
from automl.storage.folder import old_folder
from automl.storage.storage import Storage
from search.record import State
from tests.helpers.automl_cases import Cli
from tests.helpers.confirm_cases import CONV, RECORDS, SSA, fake_search, record

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

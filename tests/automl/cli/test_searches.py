"""`automl searches`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from attention import Spec
from automl.cli.folder_commands import searches_table
from automl.search.status import Listed, list_searches
from automl.storage.folder import old_folder
from automl.storage.storage import Storage
from search.record import State
from tests.helpers.automl_cases import Cli
from tests.helpers.confirm_cases import CONV, RECORDS, SSA, fake_confirmation, fake_search, record

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


def test_a_list_imports_and_opens_only_what_it_needs(tmp_path: Path) -> None:
    """Settings and trials name attention, whose modules need torch."""
    heads = {"stage1.block1": Spec("decomposed", {"heads": 8})}
    for name in ("a", "b", "c"):
        records = [*WHOLE[:-1], record(5, 0.9, heads)]
        folder = fake_search(tmp_path, records, name=name, attention="ssa", precision="bf16")
    fake_confirmation(folder)
    program = f"""
import sys
from automl.search.status import list_searches, read_status
from search import study
opened, whole = [], study._open
study._open = lambda folder, name: opened.append(folder) or whole(folder, name)
print([row.state for row in list_searches({str(tmp_path)!r})], len(opened))
status = read_status("c", {str(tmp_path)!r})
print(status.best[0], status.outcome)
print({{"torch", "ray", "mlflow", "scipy.stats"}} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    best = "005 xresnet18(width=0.25) decomposed(heads=8) @ stage1.block1 better"
    assert (done.returncode, done.stdout) == (0, f"{['finished'] * 3} 3\n{best}\nset()\n"), done.stderr


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


def test_no_searches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli("searches", "--json") == (0, "[]\n", "no searches\n")


LONG = Listed(
    name="imagewoof-20261231-235959",
    space="my_space.py:a_very_long_name",
    state="confirming",
    ended=1000,
    trials=1000,
    metric="accuracy",
    best=0.912345,
    shown="91.23 %",
    verdict="equivalent",
    age=359 * 86400,
    size=1_234_567_890_123,
)


@pytest.mark.parametrize("name", ["digits-20261121-231914", "a", "x" * 60])
def test_table_fits_80_columns(name: str) -> None:
    lines = searches_table([Listed(**{**vars(LONG), "name": name}), LONG])
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith(name) for line in lines) == 1, "a name can be copied"
    assert lines[-1].split() == [
        "a_very…", "confirming", "1000/1000", "91.23%", "equivalent", "359d", "1.2TB"
    ]  # fmt: skip

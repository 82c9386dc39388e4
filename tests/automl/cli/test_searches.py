"""`automl searches`."""

from pathlib import Path

import pytest
from filelock import FileLock

from automl.cli.folder_commands import searches_table
from automl.search.status import list_searches
from automl.storage.folder import old_folder
from automl.storage.storage import Storage
from search.record import State
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

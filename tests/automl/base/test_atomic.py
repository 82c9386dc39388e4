"""Files that appear when they are complete, and locks that exclude others."""

from pathlib import Path

import pytest
from filelock import Timeout

from automl.base.atomic import is_temporary, locked, replacing, sweep


def test_a_lock_excludes_others_and_leaves_no_file(tmp_path: Path) -> None:
    target = tmp_path / "report"
    for _ in range(2):
        with locked(target), pytest.raises(Timeout), locked(target, timeout=0):
            pass
        with locked(target, timeout=0), locked(tmp_path / "other", timeout=0):
            pass
        assert list(tmp_path.iterdir()) == []


def test_a_file_is_replaced_when_it_is_complete(tmp_path: Path) -> None:
    target = tmp_path / "table"
    target.write_text("old")
    with replacing(target) as new:
        new.write_text("new")
        assert is_temporary(new.name)
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    with pytest.raises(UnicodeEncodeError), replacing(target) as new:
        new.write_text("half" + chr(0xDC80), encoding="utf-8")
    assert target.read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


def test_leftovers_of_one_name_or_of_all_are_deleted(tmp_path: Path) -> None:
    for name in (".a.1", ".b.2", "c.3", ".d"):
        (tmp_path / name).touch()
    sweep(tmp_path, "a")
    assert {file.name for file in tmp_path.iterdir()} == {".b.2", "c.3", ".d"}
    sweep(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"c.3", ".d"}

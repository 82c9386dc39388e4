"""Locks exclude others."""

from pathlib import Path

import pytest
from filelock import Timeout

from automl.base.atomic import locked


def test_a_lock_excludes_others_and_leaves_no_file(tmp_path: Path) -> None:
    target = tmp_path / "report"
    for _ in range(2):
        with locked(target), pytest.raises(Timeout), locked(target, timeout=0):
            pass
        with locked(target, timeout=0), locked(tmp_path / "other", timeout=0):
            pass
        assert list(tmp_path.iterdir()) == []

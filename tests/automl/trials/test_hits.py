"""A bit for each test input."""

from pathlib import Path

import numpy as np
import pytest

from automl.storage.storage import Storage
from automl.trials import hits


@pytest.mark.parametrize("count", [1, 8, 9, 1000])
def test_what_is_written_is_read(count: int, tmp_path: Path) -> None:
    right = np.random.default_rng(count).random(count) < 0.7
    hits.save(Storage(tmp_path), right.astype(np.float32))
    found = hits.read(Storage(tmp_path))
    assert found is not None
    assert (found.dtype, found.tolist()) == (bool, right.tolist())
    assert (tmp_path / hits.HITS_FILE).stat().st_size < 600 + count / 8


def test_none_that_can_be_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert hits.read(Storage(tmp_path)) is None
    assert not caplog.records
    (tmp_path / hits.HITS_FILE).write_bytes(b"PK\x03\x04 cut off")
    assert hits.read(Storage(tmp_path)) is None
    assert "hits.npz of" in caplog.text

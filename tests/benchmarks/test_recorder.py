"""Recording trainings in a file: an interrupted recording continues with what the file lacks."""

import sys
from pathlib import Path
from typing import Any

import pytest

KEYS = ("table", "seed")


def train(work: tuple[str, int]) -> dict[str, Any]:
    table, seed = work
    return {"table": table, "seed": seed, "score": 10.0 * seed}


def test_a_recording_continues_with_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    import recorder

    monkeypatch.setattr(sys, "argv", ["record", "--processes", "1"])
    file = tmp_path / "table.parquet"
    assert recorder.read(file) == []
    earlier = {"table": "b", "seed": 1, "score": -1.0}
    recorder.write(file, [earlier], KEYS)
    recorder.record(None, file, [("b", 1), ("b", 0), ("a", 2)], train, KEYS)
    assert recorder.read(file) == [train(("a", 2)), train(("b", 0)), earlier]


def test_tables_of_singles_have_each_type_at_each_site(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    import record_singles

    for table in record_singles.SITES:
        placements = [
            record_singles.config(table, name, 0).model.placement for name in record_singles.names(table)
        ]
        assert placements.count({}) == 1
        assert len({str(placement) for placement in placements}) == 26

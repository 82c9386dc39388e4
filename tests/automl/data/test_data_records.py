"""Test records, which all kinds of data share: the file, splits by content or group, descriptions."""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from automl.base.errors import InputError
from automl.data import arrow
from automl.data.arrow import map_in_threads, write_rows
from automl.data.files import SIZE
from automl.data.records import RecordFile, Records
from automl.data.splits import SPLITS

SCHEMA = pa.schema(
    {
        "name": pa.string(),
        "content": pa.binary(SIZE),
        "split": pa.int8(),
        "group": pa.string(),
        "x": pa.binary(),
    }
)


def rows(count: int, members: int = 0, split: int = -1) -> Iterator[Mapping[str, Any]]:
    """Yield inputs, of which `members` in a row form a group."""
    for i in range(count):
        content = hashlib.sha256(b"%d" % i).digest()
        group = f"g{i // members}" if members else None
        yield {"name": f"n{i}", "content": content, "split": split, "group": group, "x": b"x" * i}


def opened(folder: Path, *args: Any, **options: Any) -> RecordFile:
    write_rows(folder / "a.arrow", SCHEMA, rows(*args, **options), {"key": 1})
    return RecordFile(folder / "a.arrow")


def test_rows_are_written_in_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "BATCH_BYTES", 300)
    file = opened(tmp_path, 20)
    assert file.about == {"key": 1, "rows": 20}
    assert file.names == [f"n{i}" for i in range(20)]
    assert [len(x) for x in file.table["x"].to_pylist()] == list(range(20))
    assert [bytes(key) for key in file.keys] == [row["content"] for row in rows(20)]
    assert len(file.read_blocks("content", SIZE)) > 2


def test_missing_hash_is_detected(tmp_path: Path) -> None:
    write_rows(tmp_path / "a.arrow", SCHEMA, [{**row, "content": bytes(SIZE)} for row in rows(3)], {})
    assert not RecordFile.is_sound(tmp_path / "a.arrow")


def test_subset_keeps_the_whole_test_split(tmp_path: Path) -> None:
    file = opened(tmp_path, 100)
    whole, some = Records(file), Records(file, 0.25)
    assert (some.rows("test") == whole.rows("test")).all()
    assert len(some.rows("train")) == 16
    assert np.isin(some.rows("train"), whole.rows("train")).all()
    assert some.describe_splits()["validation"].startswith("about 0.25 of about 20% of the training inputs")


def test_inputs_that_cannot_be_split_are_rejected(tmp_path: Path) -> None:
    message = r"a test split needs two groups of inputs without common copies; the 4 inputs have none"
    with pytest.raises(InputError, match=message):
        Records(opened(tmp_path, 4, members=4))


@pytest.mark.parametrize("members", [0, 4])
def test_missing_splits_are_held_out_by_content_or_group(members: int, tmp_path: Path) -> None:
    records = Records(opened(tmp_path, 100, members))
    splits = [set(records.rows(split).tolist()) for split in SPLITS]
    assert sorted(i for rows_of_split in splits for i in rows_of_split) == list(range(100))
    assert [len(rows_of_split) for rows_of_split in splits] == [64, 16, 20]
    if members:
        groups = [{i // members for i in rows_of_split} for rows_of_split in splits]
        assert sum(map(len, groups)) == 25, "no group is in two splits"
    texts = records.describe_splits()
    by = "group, which is in one split" if members else "content"
    endings = ["; 16 groups", "; 4 groups", "; 5 groups"] if members else ["", "", ""]
    assert texts["test"] == f"about 20% of all inputs, chosen by their {by}{endings[2]}"
    assert texts["train"] == f"the training inputs, less those for validation{endings[0]}"
    assert [row[:2] for row in records.manifest().rows()] == [
        (split, f"n{i}") for split in SPLITS for i in records.rows(split).tolist()
    ]


@pytest.mark.parametrize("count", [0, 1, 3, 100])
def test_inputs_are_prepared_in_order_and_errors_are_raised(count: int) -> None:
    assert list(map_in_threads("testing", range(count), lambda i: i * i)) == [i * i for i in range(count)]
    if count:
        with pytest.raises(ZeroDivisionError):
            list(map_in_threads("testing", range(count), lambda i: 1 // (count - 1 - i)))

from collections.abc import Callable
from pathlib import Path

import pytest

from automl.base.errors import InputError
from automl.tasks.sequence_classification.data import open_sequence_records, open_sequences

pytestmark = pytest.mark.usefixtures("cache")

HEAD = "series,time,x,y,label,subject,split\n"


def rows(
    name: str = "s",
    times: tuple[object, ...] = (0, 1, 2),
    label: str = "a",
    subject: str = "anna",
    split: str = "train",
) -> str:
    return "".join(f"{name},{time},{i},{i * 10},{label},{subject},{split}\n" for i, time in enumerate(times))


def dataset(more: str = "") -> str:
    """Return twelve sequences of four subjects, three of them of the test split: lines 2 to 37."""
    text = HEAD
    for i in range(12):
        subject = ("anna", "ben", "cleo", "dan")[i // 3]
        text += rows(f"s{i}", label="ab"[i % 2], subject=subject, split="test" if i > 8 else "train")
    return text + more


def test_splits_subjects_channels_and_an_own_validation(write: Callable[..., Path]) -> None:
    path = write("d.csv", dataset())
    splits = {split: open_sequences("series", split, path=path) for split in ("train", "validation", "test")}
    assert len(splits["train"]) + len(splits["validation"]) == 9
    assert splits["test"].names() == ["s9", "s10", "s11"]
    assert splits["test"].subjects == ["dan"] * 3
    for sequences in splits.values():
        assert (sequences.classes, sequences.channels, sequences.steps) == (("a", "b"), ("x", "y"), 3)
        assert sequences.values(0).tolist() == [[0, 1, 2], [0, 10, 20]]
    assert not set(splits["train"].subjects or []) & set(splits["validation"].subjects or [])
    path = write("d.csv", dataset(rows("v1", split="validation") + rows("v2", label="b", split="validation")))
    assert open_sequences("series", "validation", path=path).names() == ["v1", "v2"]
    assert len(open_sequences("series", "train", path=path)) == 9


@pytest.mark.parametrize(
    "times",
    [
        ("1.5", "2.5", "10.25"),
        ("9", "10", "100"),
        (
            "1700000000000000001",
            "1700000000000000002",
            "1700000000000000003",
        ),  # equal as floating-point numbers of 64 bits
        ("2024-05-01T12:00:00", "2024-05-01T12:00:00.5", "2024-05-02"),
        ("2024-05-01 12:00:00", "2024-05-01 12:00:01", "2024-05-01 12:00:02"),
    ],
)
def test_kinds_of_time(times: tuple[str, ...], write: Callable[..., Path]) -> None:
    text = "series,time,x,y,label,split\n"
    for i in range(8):
        for step in (2, 0, 1):
            text += f"s{i},{times[step]},{step},{i},{'ab'[i % 2]},{'test' if i == 7 else 'train'}\n"
    test = open_sequences("series", "test", path=write("d.csv", text))
    assert test.values(0).tolist() == [[0, 1, 2], [7, 7, 7]]


def test_without_subject_and_split(write: Callable[..., Path]) -> None:
    """Integer labels are sorted as numbers. An empty field is a missing value."""
    text = "time,series,label,temperature\n"
    for i in range(60):
        text += f"0,{i},{9 + i % 2},{i}\n1,{i},{9 + i % 2},\n2,{i},{9 + i % 2},{i + 2}\n"
    path = write("d.csv", text)
    train = open_sequences("series", "train", path=path)
    assert (train.classes, train.channels, train.subjects) == (("9", "10"), ("temperature",), None)
    assert (train.values(0)[0, 1] - train.values(0)[0, 0]).item() == 1
    described = open_sequence_records("series", path=path).describe_splits()
    assert "about 20% of all sequences" in described["test"]


def test_test_split_has_whole_subjects(write: Callable[..., Path]) -> None:
    text = HEAD.replace(",split", "")
    for i in range(60):
        text += rows(f"s{i}", label="ab"[i % 2], subject=f"p{i // 4}").replace(",train", "")
    path = write("d.csv", text)
    splits = [open_sequences("series", split, path=path) for split in ("train", "validation", "test")]
    people = [set(sequences.subjects or []) for sequences in splits]
    assert sum(map(len, people)) == len(set.union(*people)) == 15
    texts = open_sequence_records("series", path=path).describe_splits()
    by = "sequences, chosen by their subject, which is in one split"
    assert [len(names) for names in people] == [10, 1, 4]
    assert texts["test"] == f"about 27% of all {by}; 4 subjects"
    assert texts["validation"] == f"about 9% of the training {by}; 1 subject"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (dataset("s,0,1\n"), "d.csv:38: Expected 7 columns, got 3: s,0,1"),
        (dataset("s,0,1,1e39,a,anna,train\n"), "d.csv:38: y: '1e39' is not finite in 32 bits"),
        (dataset(rows(times=(0, "late", 2))), "d.csv:39: time must be a number in all rows.*not 'late'"),
        (dataset(rows("s0", (7,), label="b")), "d.csv:38: label must be the same in all rows of a series"),
        (dataset(rows(split="valid")), "d.csv:38: split must be one of train, validation, test, not 'valid'"),
        (HEAD + rows("s0") + rows("s1", label="b"), "a test split of whole subjects needs at least two"),
    ],
)
def test_invalid_files_are_rejected(text: str, message: str, write: Callable[..., Path]) -> None:
    with pytest.raises(InputError, match=message) as raised:
        open_sequences("series", "train", path=write("d.csv", text))
    assert "\n" not in str(raised.value)

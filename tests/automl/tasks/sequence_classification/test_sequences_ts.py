from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from automl.base.errors import InputError
from automl.tasks.sequence_classification.data import Sequences, open_sequence_records, open_sequences

pytestmark = pytest.mark.usefixtures("cache")

HEADER = """# A description.
@problemName Toy
@timeStamps false
@missing {missing}
@univariate false
@dimensions 2
@equalLength {equal}
{steps}@classLabel true up down
@data
"""


def header(equal: bool = True, missing: bool = False, steps: int | None = 3) -> str:
    return HEADER.format(
        equal=str(equal).lower(),
        missing=str(missing).lower(),
        steps="" if steps is None else f"@seriesLength {steps}\n",
    )


def rows(count: int, start: int = 0) -> str:
    """Return different sequences of 2 dimensions and 3 steps."""
    return "".join(
        f"{i},{i + 1},{i + 2}:0,{i},0:{('up', 'down')[i % 2]}\n" for i in range(start, start + count)
    )


@pytest.fixture
def toy(write: Callable[..., Path]) -> Callable[..., Path]:
    """Return a function that writes a training file and a test file, which is valid by default."""

    def make(train: str, test: str | None = header() + rows(2, 100)) -> Path:
        path = write("Toy_TRAIN.ts", train)
        if test is not None:
            write("Toy_TEST.ts", test)
        return path.with_name("Toy")

    return make


def opened(path: Path) -> dict[str, Sequences]:
    return {split: open_sequences("series", split, path=path) for split in ("train", "validation", "test")}


def test_real_recordings(basic_motions: Path) -> None:
    splits = opened(basic_motions)
    assert len(splits["train"]) + len(splits["validation"]) == len(splits["test"]) == 40
    for sequences in splits.values():
        assert sequences.classes == ("Standing", "Running", "Walking", "Badminton")
        assert sequences.channels == tuple(f"dim{i}" for i in range(6))
        assert (sequences.steps, sequences.subjects) == (100, None)
        assert (sequences.labels.bincount(minlength=4) > 0).all()
    assert splits["test"].labels.bincount().tolist() == [10] * 4
    lines = Path(f"{basic_motions}_TEST.ts").read_text().splitlines()
    lines = lines[lines.index("@data") + 1 :]
    for i in (0, 17, 39):
        *dimensions, label = lines[i].split(":")
        expected = np.array([[float(x) for x in values.split(",")] for values in dimensions], np.float32)
        assert (splits["test"].values(i) == expected).all()
        assert splits["test"].classes[splits["test"].labels[i]] == label


@pytest.mark.parametrize("name", ["Toy", "Toy_TRAIN.ts", "Toy_TEST.ts", "."])
def test_dataset_may_be_named_by_folder_or_file(name: str, toy: Callable[..., Path]) -> None:
    path = toy(header() + rows(20)).parent / name
    (path.parent / "._Toy_TRAIN.ts").write_bytes(b"of macOS")
    assert len(open_sequences("series", "test", path=str(path))) == 2


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize("univariate", [False, True])
def test_lengths_and_gaps(missing: bool, equal: bool, univariate: bool, write: Callable[..., Path]) -> None:
    first = "1,?,3" if missing else "1,2,3"
    second = "4,5,6" if equal else "4,5"
    dimensions = 1 if univariate else 2
    kind = "@univariate true" if univariate else "@univariate false\n@dimensions 2"
    head = (
        f"@equalLength {equal}\n@missing {missing}\n@timestamps false\n{kind}\n@classLabel true a b\n@data\n"
    )
    lines = [
        f"{':'.join([values] * dimensions)}:{label}\r\n" for values, label in ((first, "a"), (second, "b"))
    ]
    more = [line.replace("4", "5").replace("1", "0") for line in lines]
    write("X_TRAIN.ts", head.lower() + "".join(lines + more))
    path = write("X_TEST.ts", head + "".join(lines))
    test = open_sequences("series", "test", path=path)
    assert test.lengths.tolist() == [3, 3 if equal else 2]
    assert test.values(0)[0].tolist() == [1, 2, 3], "the gap is filled"
    x, mask = test.gather(torch.arange(2))
    assert x.shape == (2, dimensions, 3)
    assert mask[1].tolist() == [True, True, equal]
    assert bool((x[1, :, 2] == 0).all()) == (not equal)


@pytest.mark.parametrize("name", ["Toy_TRAIN.ts", "Toy.ts"])
def test_missing_test_split_is_held_out(name: str, write: Callable[..., Path]) -> None:
    path = write(name, header() + rows(60))
    splits = opened(path)
    assert sum(len(sequences) for sequences in splits.values()) == 60
    assert len({name for sequences in splits.values() for name in sequences.names()}) == 60
    assert all((sequences.labels.bincount(minlength=2) > 0).all() for sequences in splits.values())
    texts = open_sequence_records("series", path=path).describe_splits()
    assert texts["test"] == "about 20% of all sequences, of each class, chosen by their content"
    write(name, header() + rows(60, start=1))  # The first sequence is removed, another is added at the end.
    split_of = {
        tuple(sequences.values(i)[0]): split
        for split, sequences in splits.items()
        for i in range(len(sequences))
    }
    after = {
        tuple(sequences.values(i)[0]): split
        for split, sequences in opened(path).items()
        for i in range(len(sequences))
    }
    assert len(split_of.keys() & after.keys()) == 59
    moved = [values for values, split in split_of.items() if after.get(values, split) != split]
    assert len(moved) <= 4, "each change moves at most one other between two splits"


def test_gaps_are_filled_and_empty_classes_dropped(toy: Callable[..., Path]) -> None:
    path = toy((header() + rows(20)).replace("true up down", "true up sideways down"))
    assert open_sequences("series", "train", path=path).classes == ("up", "down")
    path = toy(header() + rows(20), header(missing=False) + "1,?,3:1,2,NaN:up\n")
    assert open_sequences("series", "test", path=path).values(0).tolist() == [[1, 2, 3], [1, 2, 2]]


GOOD = header() + rows(4)


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (GOOD + "1,2,3:up\n", "TRAIN.ts:15: the sequence has 1 dimensions and a label, but @dimensions says"),
        (GOOD.replace("@dimensions 2\n", "") + "1,2,3:up\n", "TRAIN.ts:14: .*the first has 2"),
        (GOOD.replace("true up down", "true up across"), "TRAIN.ts:12: the label 'down' must be among"),
        (GOOD + "1,2,3:1,2:up\n", "TRAIN.ts:15: dimension 1 has 2 values, but dimension 0 has 3"),
        (GOOD + "1,2,3:1,inf,3:up\n", "TRAIN.ts:15: dimension 1: 'inf' is not finite"),
    ],
)
def test_invalid_files_are_rejected(train: str, message: str, toy: Callable[..., Path]) -> None:
    with pytest.raises(InputError, match=message) as raised:
        open_sequences("series", "train", path=toy(train))
    assert "\n" not in str(raised.value)

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from automl.base.errors import InputError
from automl.tasks.sequence_classification.data import open_sequences

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


@pytest.mark.parametrize("name", ["Toy", "Toy_TRAIN.ts", "Toy_TEST.ts", "."])
def test_dataset_may_be_named_by_folder_or_file(name: str, toy: Callable[..., Path]) -> None:
    path = toy(header() + rows(20)).parent / name
    (path.parent / "._Toy_TRAIN.ts").write_bytes(b"of macOS")
    assert len(open_sequences("series", "test", path=str(path))) == 2


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize("univariate", [False, True])
def test_lengths_and_missing_values(
    missing: bool, equal: bool, univariate: bool, write: Callable[..., Path]
) -> None:
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


@pytest.mark.parametrize("mark", ["%", "#", "  % "])
def test_comments_are_skipped_but_counted_as_lines(mark: str, toy: Callable[..., Path]) -> None:
    comment = f"{mark}A comment, 1:up\n"
    train = comment + GOOD.replace("@data\n", f"{comment}@data\n{comment}") + comment
    assert len(open_sequences("series", "test", path=toy(train))) == 2
    with pytest.raises(InputError, match=r"TRAIN.ts:19: dimension 1: 'x' is not a number"):
        open_sequences("series", "test", path=toy(train + "1,2,3:1,x,3:up\n"))


def test_class_without_training_data_is_dropped(toy: Callable[..., Path]) -> None:
    path = toy((header() + rows(20)).replace("true up down", "true up sideways down"))
    assert open_sequences("series", "train", path=path).classes == ("up", "down")


def test_gaps_are_filled_despite_the_header(toy: Callable[..., Path]) -> None:
    path = toy(header() + rows(20), header(missing=False) + "1,?,3:1,2,NaN:up\n")
    assert open_sequences("series", "test", path=path).values(0).tolist() == [[1, 2, 3], [1, 2, 2]]


GOOD = header() + rows(4)


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ("", "Toy_TRAIN.ts is empty"),
        (header().replace("@data\n", ""), "must have a line '@data'"),
        ("1,2,3:up\n", "Toy_TRAIN.ts:1: only lines of '@key value'"),
        (GOOD.replace("@classLabel true up down", "@targetLabel true"), "TRAIN.ts:9: .* numbers to predict"),
        # headers that contradict the data
        (GOOD.replace("@dimensions 2\n", "") + "1,2,3:up\n", "TRAIN.ts:14: .*the first has 2"),
        (
            GOOD.replace("@seriesLength 3", "@seriesLength 4"),
            "TRAIN.ts:11: the sequence has 3 steps, .* says 4",
        ),
        (GOOD.replace("true up down", "true up across"), "TRAIN.ts:12: the label 'down' must be among"),
        # sequences that cannot be used
        (GOOD + "1,2,3:1,2:up\n", "TRAIN.ts:15: dimension 1 has 2 values, but dimension 0 has 3"),
        (GOOD + "1,2,3:1,inf,3:up\n", "TRAIN.ts:15: dimension 1: 'inf' is not finite"),
    ],
)
def test_invalid_files_are_rejected(train: str, message: str, toy: Callable[..., Path]) -> None:
    with pytest.raises(InputError, match=message) as raised:
        open_sequences("series", "train", path=toy(train))
    assert "\n" not in str(raised.value)

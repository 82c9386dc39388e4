import hashlib
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attention.errors import InputError
from automl.data.splits import hash_names, hold_out_split, pack_keys, select_subset

LABELS = st.lists(st.integers(0, 5), min_size=2, max_size=200)
SHARE = st.floats(0.01, 0.99)
HELD = ("test", "validation")


def keys(numbers: list[int]) -> np.ndarray:
    """Of images whose content is a number."""
    return pack_keys(hashlib.sha256(str(number).encode()).digest() for number in numbers)


def held_of(labels: list[int], numbers: list[int], share: float, split: str) -> set[int]:
    """The content of what is held out."""
    held, rest = hold_out_split(np.array(labels), keys(numbers), share, split)
    assert sorted([*held, *rest]) == list(range(len(labels)))
    return {numbers[i] for i in held}


def exact(share: float, count: int) -> int:
    return math.floor(share * count + 0.5)


@given(st.lists(st.integers(1, 150), min_size=1, max_size=5), SHARE, st.sampled_from(HELD))
def test_classes_have_exactly_their_share(counts: list[int], share: float, split: str) -> None:
    if max(counts) == 1:
        return
    labels = np.repeat(np.arange(len(counts)), counts)
    some = keys(list(range(len(labels))))
    held, _ = hold_out_split(labels, some, share, split)
    expected = [min(max(1, exact(share, count)), count - 1) for count in counts]
    assert np.bincount(labels[held], minlength=len(counts)).tolist() == expected
    expected = [max(1, exact(share, count)) for count in counts]
    assert np.bincount(labels[select_subset(labels, some, share)]).tolist() == expected


@given(st.integers(0, 10**6), st.integers(2, 60), st.integers(0, 60), SHARE, st.sampled_from(HELD))
def test_an_added_image_moves_at_most_one_other_of_its_class(
    begin: int, count: int, at: int, share: float, split: str
) -> None:
    """And so does one that is removed: from after to before."""
    numbers, others = list(range(begin, begin + count)), list(range(-40, 0))
    added = [*numbers[:at], -1_000, *numbers[at:]]
    before, after = (
        held_of([0] * len(some) + [1] * 40, [*some, *others], share, split) for some in (numbers, added)
    )
    assert len((before ^ after) - {-1_000}) <= 1
    assert {*others} & before == {*others} & after
    before, after = (
        {some[i] for i in select_subset(np.zeros(len(some), int), keys(some), share)}
        for some in (numbers, added)
    )
    assert len((before ^ after) - {-1_000}) <= 1


def test_one_image_in_two_classes_is_on_one_side() -> None:
    numbers = [*range(150), *range(100, 250)]
    labels = np.repeat([0, 1], 150)
    held, rest = hold_out_split(labels, keys(numbers), 0.2, "validation")
    assert not {numbers[i] for i in held} & {numbers[i] for i in rest}
    assert np.bincount(labels[held])[0] == 30


def test_copies_stay_together_and_the_order_is_nothing() -> None:
    numbers = [*range(50)] * 2
    held = held_of([0] * 100, numbers, 0.3, "test")
    assert held == held_of([0] * 50, list(range(50))[::-1], 0.3, "test")
    index, _ = hold_out_split(np.zeros(100, int), keys(numbers), 0.3, "test")
    assert sorted(numbers[i] for i in index) == sorted([*held] * 2)


def test_decisions_are_independent() -> None:
    """The subset is a part of either side, and a validation split of what is left by a test split, too."""
    labels, some = np.zeros(20_000, int), keys(list(range(20_000)))
    test = np.isin(np.arange(20_000), hold_out_split(labels, some, 0.5, "test")[0])
    validation = np.isin(np.arange(20_000), hold_out_split(labels, some, 0.5, "validation")[0])
    part = np.isin(np.arange(20_000), select_subset(labels, some, 0.5))
    for one, other in ((test, validation), (test, part), (validation, part)):
        assert (one & other).mean() == pytest.approx(0.25, abs=0.015)


@given(LABELS, SHARE)
def test_a_share_keeps_every_class_and_lies_in_a_larger_share(labels: list[int], share: float) -> None:
    some = np.array(labels)
    small, large = (select_subset(some, keys(list(range(len(labels)))), part) for part in (share / 2, share))
    assert set(some[small]) == set(labels)
    assert set(small) <= set(large)
    assert len(select_subset(some, keys(list(range(len(labels)))), 1.0)) == len(labels)


def test_the_split_never_changes() -> None:
    """Literal, so that no change of library or of code moves images from one split to another."""
    labels, some = np.repeat([0, 1], 10), keys(list(range(20)))
    assert hold_out_split(labels, some, 0.2, "test")[0].tolist() == [8, 9, 13, 17]
    assert hold_out_split(labels, some, 0.2, "validation")[0].tolist() == [4, 8, 10, 17]
    assert select_subset(labels, some, 0.2).tolist() == [2, 8, 10, 19]
    assert hold_out_split(labels, hash_names(map(str, range(20))), 0.2, "test")[0].tolist() == [8, 9, 13, 17]


@pytest.mark.parametrize("copies", [1, 3])
def test_classes_of_one_image_cannot_be_split(copies: int) -> None:
    with pytest.raises(
        InputError, match="a validation split needs two different inputs of one class; there are none among"
    ):
        hold_out_split(
            np.repeat(np.arange(5), copies),
            np.repeat(keys(list(range(5))), copies, axis=0),
            0.2,
            "validation",
        )

import hashlib
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from automl.data.splits import hash_names, hold_out_split, pack_keys, select_subset

LABELS = st.lists(st.integers(0, 5), min_size=2, max_size=200)


FRACTION = st.floats(0.01, 0.99)


HELD = ("test", "validation")


def keys(numbers: list[int]) -> np.ndarray:
    """Return the keys of images whose content is a number."""
    return pack_keys(hashlib.sha256(str(number).encode()).digest() for number in numbers)


def held_of(labels: list[int], numbers: list[int], fraction: float, split: str) -> set[int]:
    """Return the content of the inputs that are held out."""
    held, rest = hold_out_split(np.array(labels), keys(numbers), fraction, split)
    assert sorted([*held, *rest]) == list(range(len(labels)))
    return {numbers[i] for i in held}


def exact(fraction: float, count: int) -> int:
    return math.floor(fraction * count + 0.5)


@given(st.lists(st.integers(1, 150), min_size=1, max_size=5), FRACTION, st.sampled_from(HELD))
def test_each_class_has_exactly_its_fraction(counts: list[int], fraction: float, split: str) -> None:
    if max(counts) == 1:
        return
    labels = np.repeat(np.arange(len(counts)), counts)
    image_keys = keys(list(range(len(labels))))
    held, _ = hold_out_split(labels, image_keys, fraction, split)
    expected = [min(max(1, exact(fraction, count)), count - 1) for count in counts]
    assert np.bincount(labels[held], minlength=len(counts)).tolist() == expected
    expected = [max(1, exact(fraction, count)) for count in counts]
    assert np.bincount(labels[select_subset(labels, image_keys, fraction)]).tolist() == expected


@given(st.integers(0, 10**6), st.integers(2, 60), st.integers(0, 60), FRACTION, st.sampled_from(HELD))
def test_added_image_moves_at_most_one_other_of_its_class(
    begin: int, count: int, at: int, fraction: float, split: str
) -> None:
    """A removed image moves no more than that either: read the test from after to before."""
    numbers, others = list(range(begin, begin + count)), list(range(-40, 0))
    added = [*numbers[:at], -1_000, *numbers[at:]]
    before, after = (
        held_of([0] * len(inputs) + [1] * 40, [*inputs, *others], fraction, split)
        for inputs in (numbers, added)
    )
    assert len((before ^ after) - {-1_000}) <= 1
    assert {*others} & before == {*others} & after
    before, after = (
        {inputs[i] for i in select_subset(np.zeros(len(inputs), int), keys(inputs), fraction)}
        for inputs in (numbers, added)
    )
    assert len((before ^ after) - {-1_000}) <= 1


def test_copies_stay_together() -> None:
    numbers = [*range(150), *range(100, 250)]
    labels = np.repeat([0, 1], 150)
    held, rest = hold_out_split(labels, keys(numbers), 0.2, "validation")
    assert not {numbers[i] for i in held} & {numbers[i] for i in rest}
    assert np.bincount(labels[held])[0] == 30
    numbers = [*range(50)] * 2
    held = held_of([0] * 100, numbers, 0.3, "test")
    assert held == held_of([0] * 50, list(range(50))[::-1], 0.3, "test")
    index, _ = hold_out_split(np.zeros(100, int), keys(numbers), 0.3, "test")
    assert sorted(numbers[i] for i in index) == sorted([*held] * 2)


def test_decisions_are_independent_and_never_change() -> None:
    """The subset covers the same fraction of each side, and so does validation of the inputs left by test."""
    labels, image_keys = np.zeros(20_000, int), keys(list(range(20_000)))
    test = np.isin(np.arange(20_000), hold_out_split(labels, image_keys, 0.5, "test")[0])
    validation = np.isin(np.arange(20_000), hold_out_split(labels, image_keys, 0.5, "validation")[0])
    subset = np.isin(np.arange(20_000), select_subset(labels, image_keys, 0.5))
    for first, second in ((test, validation), (test, subset), (validation, subset)):
        assert (first & second).mean() == pytest.approx(0.25, abs=0.015)
    # The indices are literal, so that no change of a library or of the code moves images between splits.
    labels, image_keys = np.repeat([0, 1], 10), keys(list(range(20)))
    assert hold_out_split(labels, image_keys, 0.2, "test")[0].tolist() == [8, 9, 13, 17]
    assert hold_out_split(labels, image_keys, 0.2, "validation")[0].tolist() == [4, 8, 10, 17]
    assert select_subset(labels, image_keys, 0.2).tolist() == [2, 8, 10, 19]
    assert hold_out_split(labels, hash_names(map(str, range(20))), 0.2, "test")[0].tolist() == [8, 9, 13, 17]


@given(LABELS, FRACTION)
def test_subset_keeps_every_class_and_is_part_of_a_larger_subset(labels: list[int], fraction: float) -> None:
    label_array = np.array(labels)
    small, large = (
        select_subset(label_array, keys(list(range(len(labels)))), size) for size in (fraction / 2, fraction)
    )
    assert set(label_array[small]) == set(labels)
    assert set(small) <= set(large)
    assert len(select_subset(label_array, keys(list(range(len(labels)))), 1.0)) == len(labels)

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attention.errors import InputError
from automl.data.splits import as_keys, carve, keys_of, thinned

LABELS = st.lists(st.integers(0, 5), min_size=2, max_size=200)
SHARE = st.floats(0.01, 0.99)
CHANGE = st.sampled_from(["add", "remove", "change"])
HELD = ("test", "validation")


def keys(numbers: list[int]) -> np.ndarray:
    """Of images whose content is a number."""
    return as_keys(hashlib.sha256(str(number).encode()).digest() for number in numbers)


def held_of(labels: list[int], numbers: list[int], share: float, split: str) -> set[int]:
    """The content of what is held out."""
    held, rest = carve(np.array(labels), keys(numbers), share, split)
    assert sorted([*held, *rest]) == list(range(len(labels)))
    return {numbers[i] for i in held}


@given(LABELS, st.sampled_from(HELD), SHARE)
def test_every_class_of_two_has_one_on_either_side(labels: list[int], split: str, share: float) -> None:
    if len(set(labels)) == len(labels):
        return
    held = held_of(labels, list(range(len(labels))), share, split)
    for label in set(labels):
        members = {i for i, other in enumerate(labels) if other == label}
        assert 1 <= len(members & held) <= len(members) - 1 or (len(members) == 1 and not members & held)


@pytest.mark.parametrize("split", HELD)
@pytest.mark.parametrize("share", [0.05, 0.2, 0.5])
def test_classes_have_about_their_share(split: str, share: float) -> None:
    labels = np.arange(40_000) % 4
    held, _ = carve(labels, keys(list(range(40_000))), share, split)
    bound = 4 * (share * (1 - share) / 10_000) ** 0.5
    assert np.abs(np.bincount(labels[held]) / 10_000 - share).max() < bound
    chosen = thinned(labels, keys(list(range(40_000))), share)
    assert np.abs(np.bincount(labels[chosen]) / 10_000 - share).max() < bound


@given(st.integers(0, 10**6), st.integers(20, 60), st.integers(0, 59), CHANGE, st.sampled_from(HELD))
def test_no_image_matters_to_another(begin: int, count: int, which: int, change: str, split: str) -> None:
    """Where the classes are not so small that a side would be empty."""
    which %= count
    labels, numbers = [0] * count, list(range(begin, begin + count))
    if change == "add":
        labels, changed = [*labels, 0], [*numbers[:which], -1, *numbers[which:]]
    elif change == "remove":
        labels, changed = labels[1:], [*numbers[:which], *numbers[which + 1 :]]
    else:
        changed = [*numbers[:which], -1, *numbers[which + 1 :]]
    before = held_of([0] * count, numbers, 0.5, split)
    after = held_of(labels, changed, 0.5, split)
    stayed = set(numbers) & set(changed)
    assert before & stayed == after & stayed
    small, large = (
        {some[i] for i in thinned(np.zeros(len(some), int), keys(some), 0.5)} for some in (numbers, changed)
    )
    assert small & stayed == large & stayed


def test_copies_stay_together_and_the_order_is_nothing() -> None:
    numbers = [*range(50)] * 2
    held = held_of([0] * 100, numbers, 0.3, "test")
    assert held == held_of([0] * 50, list(range(50))[::-1], 0.3, "test")
    index, _ = carve(np.zeros(100, int), keys(numbers), 0.3, "test")
    assert sorted(numbers[i] for i in index) == sorted([*held] * 2)


def test_decisions_are_independent() -> None:
    """The subset is a part of either side, and a validation split of what is left by a test split, too."""
    labels, some = np.zeros(20_000, int), keys(list(range(20_000)))
    test = np.isin(np.arange(20_000), carve(labels, some, 0.5, "test")[0])
    validation = np.isin(np.arange(20_000), carve(labels, some, 0.5, "validation")[0])
    part = np.isin(np.arange(20_000), thinned(labels, some, 0.5))
    for one, other in ((test, validation), (test, part), (validation, part)):
        assert (one & other).mean() == pytest.approx(0.25, abs=0.015)


@given(LABELS, SHARE)
def test_a_share_keeps_every_class_and_lies_in_a_larger_share(labels: list[int], share: float) -> None:
    some = np.array(labels)
    small, large = (thinned(some, keys(list(range(len(labels)))), part) for part in (share / 2, share))
    assert set(some[small]) == set(labels)
    assert set(small) <= set(large)
    assert len(thinned(some, keys(list(range(len(labels)))), 1.0)) == len(labels)


def test_the_split_never_changes() -> None:
    """Literal, so that no change of library or of code moves images from one split to another."""
    labels, some = np.repeat([0, 1], 10), keys(list(range(20)))
    assert carve(labels, some, 0.2, "test")[0].tolist() == [8, 9, 13]
    assert carve(labels, some, 0.2, "validation")[0].tolist() == [4, 8, 10, 12, 13, 17]
    assert thinned(labels, some, 0.2).tolist() == [2, 3, 8, 19]
    assert carve(labels, keys_of(map(str, range(20))), 0.2, "test")[0].tolist() == [8, 9, 13]


@pytest.mark.parametrize("copies", [1, 3])
def test_classes_of_one_image_cannot_be_split(copies: int) -> None:
    with pytest.raises(InputError, match="a validation split needs a class of two different images or more"):
        carve(
            np.repeat(np.arange(5), copies),
            np.repeat(keys(list(range(5))), copies, axis=0),
            0.2,
            "validation",
        )

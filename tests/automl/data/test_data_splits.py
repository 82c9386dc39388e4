import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attention.errors import InputError
from automl.data.splits import carve, stratified, thinned

LABELS = st.lists(st.integers(0, 5), min_size=1, max_size=200).map(np.array)
FRACTION = st.floats(0.01, 0.99)


@given(LABELS, FRACTION, st.integers(0, 9))
def test_sides_are_disjoint_complete_and_repeatable(labels: np.ndarray, fraction: float, seed: int) -> None:
    held, kept = stratified(labels, fraction, seed)
    assert sorted([*held, *kept]) == list(range(len(labels)))
    again = stratified(labels, fraction, seed)
    assert (held == again[0]).all()
    assert (kept == again[1]).all()


@given(LABELS, FRACTION)
def test_every_class_has_its_share_on_either_side(labels: np.ndarray, fraction: float) -> None:
    held, _ = stratified(labels, fraction, 0)
    for label in np.unique(labels):
        count, out = (labels == label).sum(), (labels[held] == label).sum()
        if count == 1:
            assert out == 0
        else:
            assert 1 <= out <= count - 1
            assert abs(out - count * fraction) <= 1


@given(LABELS, FRACTION)
def test_a_share_keeps_every_class_and_lies_in_a_larger_share(labels: np.ndarray, fraction: float) -> None:
    small, large = thinned(labels, fraction / 2), thinned(labels, fraction)
    assert set(labels[small]) == set(labels)
    assert set(small) <= set(large)


def test_the_split_never_changes() -> None:
    """Literal, so that no change of library or of code moves images from one split to another."""
    assert carve(np.repeat([0, 1], 10), 0.2, "test")[0].tolist() == [2, 8, 13, 15]


def test_classes_of_one_image_cannot_be_split() -> None:
    with pytest.raises(InputError, match="two images or more"):
        carve(np.arange(5), 0.2, "validation")

"""What is said of unequal classes."""

import pytest

from automl.data.balance import describe_imbalance
from search.class_statistics import RATIO


def test_unequal_classes_are_named_with_what_to_do() -> None:
    said = describe_imbalance({"cat": 1200, "dog": 60, "eel": 0, "yak": 900})
    assert said == (
        "classes are imbalanced, 1,200 of cat to 60 of dog in training: "
        "consider --metric balanced_accuracy --class-weights balanced"
    )


@pytest.mark.parametrize("counts", [{}, {"cat": 9}, {"cat": 10, "dog": 10 * RATIO}, {"cat": 0, "dog": 5}])
def test_of_about_equal_classes_nothing_is_said(counts: dict[str, int]) -> None:
    assert describe_imbalance(counts) == ""


def test_what_was_given_is_not_named_again() -> None:
    counts = {"cat": 100, "dog": 10}
    assert describe_imbalance(counts, given={"metric": "auc"}).endswith("consider --class-weights balanced")
    assert describe_imbalance(counts, given={"metric": "auc", "class_weights": "none"}) == ""

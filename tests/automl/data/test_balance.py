"""Test the report of imbalanced classes."""

import pytest

from search.class_statistics import RATIO, describe_imbalance


def test_imbalanced_classes_are_reported_with_options() -> None:
    text = describe_imbalance({"cat": 1200, "dog": 60, "eel": 0, "yak": 900})
    assert text == (
        "classes are imbalanced, 1,200 of cat to 60 of dog in training: "
        "consider --metric balanced_accuracy --class-weights balanced"
    )


@pytest.mark.parametrize("counts", [{}, {"cat": 9}, {"cat": 10, "dog": 10 * RATIO}, {"cat": 0, "dog": 5}])
def test_balanced_classes_are_not_reported(counts: dict[str, int]) -> None:
    assert describe_imbalance(counts) == ""


def test_options_in_use_are_not_suggested() -> None:
    counts = {"cat": 100, "dog": 10}
    assert describe_imbalance(counts, options={"metric": "auc"}).endswith("consider --class-weights balanced")
    assert describe_imbalance(counts, options={"metric": "auc", "class_weights": "none"}) == ""

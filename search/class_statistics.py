"""Arithmetic of metrics of classes: fractions of classes for guessing, and metrics without each input."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

RATIO = 3  # largest to smallest class, above which classes are imbalanced
ACCIDENT = 1e-6  # probability; a split by subjects, or a published one, may have other fractions on purpose


def is_imbalanced(counts: Iterable[int]) -> bool:
    """Return True if the largest class has more than RATIO times the inputs of the smallest one with any."""
    present = [count for count in counts if count]
    return bool(present) and max(present) > RATIO * min(present)


def class_shares(counts: Sequence[int], population: Sequence[int] = ()) -> Floats:
    """Return the fractions of the classes with inputs that guessing may expect on a split.

    They are those of the population if its classes are balanced (`is_imbalanced`) and the split could be
    drawn from it by accident; otherwise those of the split. `counts` and `population` hold the inputs of each
    class in the split, and in training and validation.
    """
    from scipy.special import chdtrc  # takes a third of a second

    split, everything = np.array(counts, float), np.array(population or counts, float)
    if (everything[split > 0] > 0).all() and not is_imbalanced(everything.tolist()):
        fractions: Floats = everything[everything > 0] / everything.sum()
        mean = fractions * split.sum()
        squares = ((split[everything > 0] - mean) ** 2 / mean).sum()
        if chdtrc(max(len(fractions) - 1, 1), squares) > ACCIDENT:
            return fractions
    present: Floats = split[split > 0] / split.sum()
    return present


def pseudo_values(sums: Floats, counts: Floats) -> Floats:
    """Return the pseudo-values `(N,)` of a mean over classes.

    `sums` and `counts` hold the sum over the classes and the number of classes, with all inputs and then
    without each, `(1 + N,)`. Without its only input, a class is left out.
    """
    n, mean = len(sums) - 1, sums[0] / counts[0]
    mean_without = np.divide(sums[1:], counts[1:], out=np.full(n, mean), where=counts[1:] > 0)
    return np.asarray(n * mean - (n - 1) * mean_without)


def classes_without_each(true: Labels, answered: Labels, precision: int) -> tuple[Floats, Floats]:
    """Return the arguments of `pseudo_values` for (1 + w) TP / (inputs + w answers), with w = `precision`."""
    size = int(max(true.max(), answered.max())) + 1
    inputs, answers = (np.bincount(labels, minlength=size).astype(float) for labels in (true, answered))
    right = np.bincount(true[true == answered], minlength=size).astype(float)

    def scores(right: Floats, inputs: Floats, answers: Floats) -> Floats:
        below = inputs + precision * answers
        return np.divide((1 + precision) * right, below, out=np.zeros_like(below), where=inputs > 0)

    now = scores(right, inputs, answers)
    is_right = (true == answered).astype(float)
    # Without an input, its true class has one input less and the answered class one answer less.
    of_true_class = scores(right[true] - is_right, inputs[true] - 1, answers[true] - is_right)
    of_answered_class = scores(right[answered], inputs[answered], answers[answered] - 1)
    change = of_true_class - now[true] + np.where(is_right > 0, 0.0, of_answered_class - now[answered])
    classes = float((inputs > 0).sum())
    sums = np.concatenate([[now.sum()], now.sum() + change])
    return sums, np.concatenate([[classes], classes - (inputs[true] == 1)])


def areas_without_each(scores: Floats, true: Labels, classes: int) -> tuple[Floats, Floats]:
    """Return the arguments of `pseudo_values` for the areas under the curves.

    An area is the mean over the inputs of its class of the fraction of other inputs that each is above. It is
    also the mean over the other inputs of the fraction that each is below. Without an input, the area is the
    mean without that input's fraction (E. DeLong, D. DeLong and D. Clarke-Pearson (1988)).

    `scores` is `(classes, N)`, or `(1, N)` for the second of two classes.
    """
    n = len(true)
    sums, counts = np.zeros(1 + n), np.zeros(1 + n)
    for column, score in enumerate(scores, start=classes - len(scores)):
        is_positive = true == column
        positives, negatives = int(is_positive.sum()), n - int(is_positive.sum())
        if not positives or not negatives:
            continue
        ranks, fractions = _midranks(score), np.empty(n)
        fractions[is_positive] = (ranks[is_positive] - _midranks(score[is_positive])) / negatives
        fractions[~is_positive] = 1 - (ranks[~is_positive] - _midranks(score[~is_positive])) / positives
        area, size = fractions[is_positive].mean(), np.where(is_positive, positives, negatives)
        remains = size > 1
        area_without = np.divide(size * area - fractions, size - 1, out=np.zeros(n), where=remains)
        sums += np.concatenate([[area], area_without])
        counts += np.concatenate([[1.0], remains])
    return sums, counts


def _midranks(values: Floats) -> Floats:
    """Return the rank of each value, from 1 on. Equal values get the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (counts.cumsum() - (counts - 1) / 2)[inverse]

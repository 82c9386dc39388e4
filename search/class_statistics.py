"""The arithmetic of metrics of classes: the shares that guessing goes by, and metrics without each input."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

RATIO = 3  # of the largest class to the smallest, above which they are called imbalanced
ACCIDENT = 1e-6  # a split of whole subjects, or one that others made, may have other shares on purpose


def is_imbalanced(counts: Iterable[int]) -> bool:
    """Whether the largest class has more than RATIO times as many inputs as the smallest that has any."""
    present = [count for count in counts if count]
    return bool(present) and max(present) > RATIO * min(present)


def class_shares(counts: Sequence[int], population: Sequence[int] = ()) -> Floats:
    """Return the shares of the classes that have inputs, as one who guesses may expect them on a split.

    They are those of the population if its classes are balanced (`is_imbalanced`) and the split could be
    drawn from it by accident; otherwise those of the split.

    counts: inputs of each class in the split. population: the same of training and validation, where known.
    """
    from scipy.special import chdtrc  # takes a third of a second

    of_split, of_all = np.array(counts, float), np.array(population or counts, float)
    if (of_all[of_split > 0] > 0).all() and not is_imbalanced(of_all.tolist()):
        share: Floats = of_all[of_all > 0] / of_all.sum()
        mean = share * of_split.sum()
        squares = ((of_split[of_all > 0] - mean) ** 2 / mean).sum()
        if chdtrc(max(len(share) - 1, 1), squares) > ACCIDENT:
            return share
    present: Floats = of_split[of_split > 0] / of_split.sum()
    return present


def pseudo_values(sums: Floats, counts: Floats) -> Floats:
    """Return the pseudo-values `(N,)` of a mean over classes.

    sums: over the classes, of all inputs, and then without each, `(1 + N,)`. counts: of these
    classes. A class whose only input is left out is left out with it.
    """
    n, mean = len(sums) - 1, sums[0] / counts[0]
    left = np.divide(sums[1:], counts[1:], out=np.full(n, mean), where=counts[1:] > 0)
    return np.asarray(n * mean - (n - 1) * left)


def classes_without_each(true: Labels, answered: Labels, precision: int) -> tuple[Floats, Floats]:
    """Return what `pseudo_values` takes, of (1 + w) TP / (inputs + w answers), for w = `precision`."""
    size = int(max(true.max(), answered.max())) + 1
    inputs, answers = (np.bincount(of, minlength=size).astype(float) for of in (true, answered))
    right = np.bincount(true[true == answered], minlength=size).astype(float)

    def scores(right: Floats, inputs: Floats, answers: Floats) -> Floats:
        below = inputs + precision * answers
        return np.divide((1 + precision) * right, below, out=np.zeros_like(below), where=inputs > 0)

    now = scores(right, inputs, answers)
    hit = (true == answered).astype(float)
    # Of its true class there is one input less, and of the answered one an answer.
    mine = scores(right[true] - hit, inputs[true] - 1, answers[true] - hit)
    other = scores(right[answered], inputs[answered], answers[answered] - 1)
    change = mine - now[true] + np.where(hit > 0, 0.0, other - now[answered])
    classes = float((inputs > 0).sum())
    sums = np.concatenate([[now.sum()], now.sum() + change])
    return sums, np.concatenate([[classes], classes - (inputs[true] == 1)])


def areas_without_each(scores: Floats, true: Labels, classes: int) -> tuple[Floats, Floats]:
    """The same of the areas under the curves.

    An area is the mean over its class's inputs of the part of the others that each is above, and the mean
    over the others of the part that each is below; without an input it is that without the input's part
    (E. DeLong, D. DeLong and D. Clarke-Pearson (1988)).

    scores: `(classes, N)`, or `(1, N)` of the second of two classes.
    """
    n = len(true)
    sums, counts = np.zeros(1 + n), np.zeros(1 + n)
    for column, score in enumerate(scores, start=classes - len(scores)):
        mine = true == column
        ours, theirs = int(mine.sum()), n - int(mine.sum())
        if not ours or not theirs:
            continue
        ranks, parts = _midranks(score), np.empty(n)
        parts[mine] = (ranks[mine] - _midranks(score[mine])) / theirs
        parts[~mine] = 1 - (ranks[~mine] - _midranks(score[~mine])) / ours
        area, size = parts[mine].mean(), np.where(mine, ours, theirs)
        remains = size > 1
        left = np.divide(size * area - parts, size - 1, out=np.zeros(n), where=remains)
        sums += np.concatenate([[area], left])
        counts += np.concatenate([[1.0], remains])
    return sums, counts


def _midranks(values: Floats) -> Floats:
    """The rank of each value, from 1 on; equal ones have the mean of theirs."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (counts.cumsum() - (counts - 1) / 2)[which]

"""Arithmetic of classes: imbalance, the score of guessing, metrics without each input, scores by class."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from automl.base.escape import printable

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
    return np.asarray(split[split > 0] / split.sum())


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
    from scipy.stats import rankdata  # takes half a second

    n = len(true)
    sums, counts = np.zeros(1 + n), np.zeros(1 + n)
    for column, score in enumerate(scores, start=classes - len(scores)):
        is_positive = true == column
        positives, negatives = int(is_positive.sum()), n - int(is_positive.sum())
        if not positives or not negatives:
            continue
        ranks, fractions = rankdata(score), np.empty(n)
        fractions[is_positive] = (ranks[is_positive] - rankdata(score[is_positive])) / negatives
        fractions[~is_positive] = 1 - (ranks[~is_positive] - rankdata(score[~is_positive])) / positives
        area, size = fractions[is_positive].mean(), np.where(is_positive, positives, negatives)
        remains = size > 1
        area_without = np.divide(size * area - fractions, size - 1, out=np.zeros(n), where=remains)
        sums += np.concatenate([[area], area_without])
        counts += np.concatenate([[1.0], remains])
    return sums, counts


def precisions_without_each(scores: Floats, true: Floats) -> tuple[Floats, Floats]:
    """Return the arguments of `pseudo_values` for the average precision of labels.

    `scores` and `true`, of 0 and 1, are `(N, labels)`. The precision at a positive, an input with the label,
    is the fraction of positives among the inputs with its score or a higher one.
    """
    sums, counts = np.zeros(1 + len(true)), np.zeros(1 + len(true))
    for of_label, is_true in zip(scores.T, true.T > 0, strict=True):
        positive, everything = np.sort(of_label[is_true]), np.sort(of_label)
        if not len(positive):
            continue
        hits = len(positive) - np.searchsorted(positive, positive)
        rank = len(true) - np.searchsorted(everything, positive)
        # Without an input, the positives up to its score rank one higher, and have one hit less if it is one.
        fewer = np.maximum(rank - 1, 1)
        now, without_true, without_false = (
            np.concatenate([[0.0], np.cumsum(precision)])
            for precision in (hits / rank, (hits - 1) / fewer, hits / fewer)
        )
        up_to = np.searchsorted(positive, of_label, side="right")
        own = ((hits - 1) / fewer)[np.maximum(up_to - 1, 0)]
        below = np.where(is_true, without_true[up_to] - own, without_false[up_to])
        remaining = len(positive) - is_true
        area = (now[-1] - now[up_to] + below) / np.maximum(remaining, 1)
        sums += np.concatenate([[now[-1] / len(positive)], area])
        counts += np.concatenate([[1], remaining > 0])
    return sums, counts


def random_precision(positives: int, inputs: int) -> tuple[float, float]:
    """Return the exact mean and standard deviation of the average precision of `inputs` in random order.

    It is the mean of S(r) / r over the ranks r of the `positives`, which are drawn without replacement. S(r)
    is the number of them up to r.
    """
    rank = np.arange(1, inputs + 1)
    before = rank - 1
    # Probability that another rank is a positive's, given one, two and three of them.
    second, third, fourth = ((positives - i) / max(inputs - i, 1) for i in (1, 2, 3))
    mean = ((1 + before * second) / rank).sum() / inputs
    own = 1 + before * second * (3 + (rank - 2) * third)  # mean of S(r) squared at a positive
    # The mean of S(r) S(q) at two positives is a + b (r - 1). It is summed over r < q, divided by r.
    a, b = 2 + (rank - 2) * third, third * (3 + (rank - 3) * fourth)
    harmonic = np.cumsum(1 / rank) - 1 / rank
    pairs = a * harmonic + b * (before - harmonic)
    square = ((own / rank**2).sum() + 2 * second * (pairs / rank).sum()) / (inputs * positives)
    return float(mean), float(np.sqrt(max(0.0, square - mean**2)))


@dataclass(frozen=True, kw_only=True)
class ScoreCard:
    """Counts of answers.

    Attributes:
        labels: The names of the classes.
        matrix: `matrix[true, answered]`, int64 `(labels, labels)`.
    """

    labels: Sequence[str]
    matrix: NDArray[np.int64]

    @classmethod
    def of(cls, labels: Sequence[str], true: NDArray[np.int64], answered: NDArray[np.int64]) -> "ScoreCard":
        """Count the true labels of inputs and the answers, both indices of `labels`, `(N,)`."""
        matrix = np.zeros((len(labels), len(labels)), dtype=np.int64)
        np.add.at(matrix, (true, answered), 1)
        return cls(labels=labels, matrix=matrix)

    @property
    def accuracy(self) -> float:
        """Return the fraction of right answers."""
        return float(self.matrix.trace() / self.matrix.sum())

    @property
    def counts(self) -> NDArray[np.int64]:
        """Return the number of inputs of each label, `(labels,)`."""
        return np.asarray(self.matrix.sum(axis=1))

    @property
    def recall(self) -> NDArray[np.float64]:
        """Return the fraction of right answers per label of the inputs, `(labels,)`. NaN without inputs."""
        return self._divide_right(self.counts)

    @property
    def precision(self) -> NDArray[np.float64]:
        """Return the fraction of right answers per answered label, `(labels,)`. NaN without answers."""
        return self._divide_right(self.matrix.sum(axis=0))

    @property
    def f1(self) -> NDArray[np.float64]:
        """Return the harmonic mean of recall and precision, `(labels,)`. NaN for labels without inputs."""
        scores = 2 * self._divide_right(self.counts + self.matrix.sum(axis=0))
        return np.where(self.counts > 0, scores, np.nan)

    def _divide_right(self, numbers: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the right answers of each label per number, `(labels,)`."""
        with np.errstate(invalid="ignore"):
            return self.matrix.diagonal() / numbers

    def worst(self, most: int) -> list[int]:
        """Return the indices of up to `most` labels with inputs, lowest F1 first."""
        present = np.flatnonzero(self.counts)
        return [int(i) for i in present[np.argsort(self.f1[present], kind="stable")][:most]]

    def confusions(self) -> list[tuple[str, str, int]]:
        """Return (true label, answered label, count), the most frequent first."""
        wrong = self.matrix - np.diag(self.matrix.diagonal())
        true, answered = np.nonzero(wrong)
        order = np.argsort(-wrong[true, answered], kind="stable")
        pairs = zip(true[order], answered[order], strict=True)
        return [(self.labels[i], self.labels[j], int(wrong[i, j])) for i, j in pairs]

    def write_csv(self, file: Path) -> None:
        """Write the matrix, with answered labels in the first line and true labels in the first column."""
        with file.open("w", newline="", encoding="utf-8") as lines:
            writer = csv.writer(lines)
            writer.writerow(["true", *self.labels])
            writer.writerows(
                [label, *row] for label, row in zip(self.labels, self.matrix.tolist(), strict=True)
            )


OPTIONS = {"metric": "--metric balanced_accuracy", "class_weights": "--class-weights balanced"}


def describe_imbalance(counts: Mapping[str, int], *, options: Mapping[str, object] | None = None) -> str:
    """Return a line about imbalanced classes of the training data and options for them.

    `counts` has the training inputs of each class. Classes are imbalanced if one has more than RATIO times as
    many as another. Classes without inputs are ignored. The line is empty if the classes are balanced or no
    option is left to suggest: those of OPTIONS whose values in `options` are not None are not suggested.
    """
    counts = {name: count for name, count in counts.items() if count}
    suggestions = [text for key, text in OPTIONS.items() if (options or {}).get(key) is None]
    if not suggestions or not is_imbalanced(counts.values()):
        return ""
    most, least = (pick(counts, key=lambda name: counts[name]) for pick in (max, min))
    return (
        f"classes are imbalanced, {counts[most]:,} of {printable(most)} to {counts[least]:,} of "
        f"{printable(least)} in training: consider {' '.join(suggestions)}"
    )

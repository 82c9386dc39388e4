"""Recall, precision and F1 of each class, and the confusions, from counts of answers."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


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
        counts: NDArray[np.int64] = self.matrix.sum(axis=1)
        return counts

    @property
    def recall(self) -> NDArray[np.float64]:
        """Return the fraction of right answers per label of the inputs, `(labels,)`. NaN without inputs."""
        with np.errstate(invalid="ignore"):
            return np.asarray(self.matrix.diagonal() / self.counts)

    @property
    def precision(self) -> NDArray[np.float64]:
        """Return the fraction of right answers per answered label, `(labels,)`. NaN without answers."""
        with np.errstate(invalid="ignore"):
            return np.asarray(self.matrix.diagonal() / self.matrix.sum(axis=0))

    @property
    def f1(self) -> NDArray[np.float64]:
        """Return the harmonic mean of recall and precision, `(labels,)`. NaN for labels without inputs."""
        with np.errstate(invalid="ignore"):
            scores = 2 * self.matrix.diagonal() / (self.counts + self.matrix.sum(axis=0))
        return np.where(self.counts > 0, scores, np.nan)

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

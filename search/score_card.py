"""Recall, precision and F1 of each class, and the confusions, from counts of answers."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class ScoreCard:
    """Counts of answers: `matrix[true, answered]`, int64 (labels, labels)."""

    labels: Sequence[str]
    matrix: NDArray[np.int64]

    @classmethod
    def of(cls, labels: Sequence[str], true: NDArray[np.int64], answered: NDArray[np.int64]) -> "ScoreCard":
        """From the true label of each input and the answer to it, indices of `labels`, (N,)."""
        matrix = np.zeros((len(labels), len(labels)), dtype=np.int64)
        np.add.at(matrix, (true, answered), 1)
        return cls(labels=labels, matrix=matrix)

    @property
    def accuracy(self) -> float:
        """The share of right answers."""
        return float(self.matrix.trace() / self.matrix.sum())

    @property
    def counts(self) -> NDArray[np.int64]:
        """The inputs of each label, (labels,)."""
        counts: NDArray[np.int64] = self.matrix.sum(axis=1)
        return counts

    @property
    def recall(self) -> NDArray[np.float64]:
        """The share of right answers among the inputs of each label, (labels,). nan where there are none."""
        with np.errstate(invalid="ignore"):
            return np.asarray(self.matrix.diagonal() / self.counts)

    @property
    def precision(self) -> NDArray[np.float64]:
        """The share of right ones among the answers with each label, (labels,). nan where there are none."""
        with np.errstate(invalid="ignore"):
            return np.asarray(self.matrix.diagonal() / self.matrix.sum(axis=0))

    @property
    def f1(self) -> NDArray[np.float64]:
        """The harmonic mean of recall and precision, (labels,). nan for labels that no input has."""
        with np.errstate(invalid="ignore"):
            found = 2 * self.matrix.diagonal() / (self.counts + self.matrix.sum(axis=0))
        return np.where(self.counts > 0, found, np.nan)

    def worst(self, most: int) -> list[int]:
        """Indices of the labels that inputs have, those with the lowest F1 first; `most` at most."""
        there = np.flatnonzero(self.counts)
        return [int(i) for i in there[np.argsort(self.f1[there], kind="stable")][:most]]

    def confusions(self) -> list[tuple[str, str, int]]:
        """What was taken for what, and how often; the most frequent first."""
        wrong = self.matrix - np.diag(self.matrix.diagonal())
        true, answered = np.nonzero(wrong)
        order = np.argsort(-wrong[true, answered], kind="stable")
        pairs = zip(true[order], answered[order], strict=True)
        return [(self.labels[i], self.labels[j], int(wrong[i, j])) for i, j in pairs]

    def write_csv(self, file: Path) -> None:
        """The matrix with the answered labels as the first line and the true ones as the first column."""
        with file.open("w", newline="", encoding="utf-8") as lines:
            writer = csv.writer(lines)
            writer.writerow(["true", *self.labels])
            writer.writerows(
                [label, *row] for label, row in zip(self.labels, self.matrix.tolist(), strict=True)
            )

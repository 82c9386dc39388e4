"""Accuracy by class and the confusion matrix of a deployed model."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from automl.tasks import Task
from automl.tasks.base import Split
from automl.tasks.deployment import Deployment, Run, as_arrays


@dataclass(frozen=True, kw_only=True)
class ScoreCard:
    """Counts of answers: `matrix[true, answered]`, int64 (labels, labels)."""

    labels: Sequence[str]
    matrix: NDArray[np.int64]

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
    def by_label(self) -> NDArray[np.float64]:
        """The share of right answers among the inputs of each label, (labels,). nan where there are none."""
        with np.errstate(invalid="ignore"):
            return self.matrix.diagonal() / self.counts

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


@dataclass(frozen=True, kw_only=True)
class Answers:
    """The true label of each input of a split and what each model answers, int64 (N,)."""

    labels: Sequence[str]
    true: NDArray[np.int64]
    answered: Mapping[str, NDArray[np.int64]]

    def card(self, model: str) -> ScoreCard:
        """The score card of one model."""
        matrix = np.zeros((len(self.labels), len(self.labels)), dtype=np.int64)
        np.add.at(matrix, (self.true, self.answered[model]), 1)
        return ScoreCard(labels=self.labels, matrix=matrix)

    def agreement(self, one: str, other: str) -> float:
        """The share of inputs that two models give the same answer for."""
        return float((self.answered[one] == self.answered[other]).mean())


def answers(task: Task, deployment: Deployment, split: Split, models: Mapping[str, Run]) -> Answers | None:
    """What each of `models` answers to a whole split. None for a task whose answers are not labels."""
    if not deployment.labels:
        return None
    first = deployment.outputs[0]
    true: list[np.ndarray] = []
    answered: dict[str, list[np.ndarray]] = {name: [] for name in models}
    for inputs, labels in task.labelled_inputs(split):
        true.append(labels.cpu().numpy())
        arrays = as_arrays(inputs)
        for name, run in models.items():
            answered[name].append(run(arrays)[first].argmax(axis=-1))
    if not true:
        return None
    return Answers(
        labels=deployment.labels,
        true=np.concatenate(true),
        answered={name: np.concatenate(parts) for name, parts in answered.items()},
    )

"""Answers of deployed models to a whole split."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from automl.tasks import Task
from automl.tasks.base import Split
from automl.tasks.deployment import Deployment, Run, as_arrays
from search.score_card import ScoreCard


@dataclass(frozen=True, kw_only=True)
class Answers:
    """True labels of a split and the answers of each model, int64 `(N,)`."""

    labels: Sequence[str]
    true: NDArray[np.int64]
    answered: Mapping[str, NDArray[np.int64]]

    def card(self, model: str) -> ScoreCard:
        """Return the score card of a model."""
        return ScoreCard.of(self.labels, self.true, self.answered[model])

    def agreement(self, first: str, second: str) -> float:
        """Return the fraction of inputs for which two models give the same answer."""
        return float((self.answered[first] == self.answered[second]).mean())


def answers(task: Task, deployment: Deployment, split: Split, models: Mapping[str, Run]) -> Answers | None:
    """Return the answers of each of `models` to a whole split, or None if answers are not labels."""
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

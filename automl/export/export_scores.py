"""Score card of a deployed model on a whole split."""

import numpy as np

from automl.tasks import Task
from automl.tasks.base import Split
from automl.tasks.deployment import Deployment, Run, as_arrays
from search.class_statistics import ScoreCard


def score_card(task: Task, deployment: Deployment, split: Split, run: Run) -> ScoreCard | None:
    """Return the score card of a model on a whole split, or None if its answers are not labels."""
    if not deployment.labels:
        return None
    first = deployment.outputs[0]
    true: list[np.ndarray] = []
    answered: list[np.ndarray] = []
    for inputs, labels in task.labelled_inputs(split):
        true.append(labels.cpu().numpy())
        answered.append(run(as_arrays(inputs))[first].argmax(axis=-1))
    if not true:
        return None
    return ScoreCard.of(deployment.labels, np.concatenate(true), np.concatenate(answered))

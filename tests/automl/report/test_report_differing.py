"""The photographs that the best model and the baseline answer differently."""

import numpy as np
import pytest
import torch

from automl.maps.kept import EACH, find_differing
from automl.storage.trial_files import Answers
from automl.task import Task, open_task
from automl.tasks.image_classification import ImageData
from search.config import TrialConfig
from tests.helpers.automl_cases import HERE

pytestmark = pytest.mark.usefixtures("cache")
LABELS = tuple("0123456789")


@pytest.fixture
def task() -> Task:
    return open_task(TrialConfig(data=ImageData(source="digits", size=32)), HERE)


def answers(true: np.ndarray, wrong: list[int]) -> Answers:
    answered = true.copy()
    answered[wrong] = (true[wrong] + 1) % len(LABELS)
    right = (answered == true).astype(float)
    return Answers(values=right, labels=LABELS, true=true, answered=answered)


def test_most_trainings_of_one_model_alone_are_right(task: Task) -> None:
    true = np.arange(task.size("validation")) % len(LABELS)
    ours = [answers(true, [0, 9]), answers(true, [0, 9]), answers(true, [0, 3, 4])]
    theirs = [answers(true, [0, 3, 4, 5]), answers(true, [0, 3, 5]), answers(true, [0, 1, 5])]
    differing = find_differing(task, "validation", ours, theirs)
    assert differing
    assert differing.count == (2, 1)
    assert list(zip(differing.true, differing.ours, differing.theirs, strict=True)) == [
        ("5", "5", "6"), ("3", "3", "4"), ("9", "0", "9"),
    ]  # fmt: skip
    expected = task.model_inputs("validation", task.size("validation"))["images"][[5, 3, 9]]
    assert torch.equal(torch.tensor(np.stack(differing.pictures)), expected.cpu())


def test_few_are_shown_and_none_without_answers(task: Task) -> None:
    true = np.arange(task.size("validation")) % len(LABELS)
    differing = find_differing(task, "validation", [answers(true, [])], [answers(true, list(range(40)))])
    assert differing
    assert (differing.count, len(differing.pictures)) == ((40, 0), EACH)
    same = [answers(true, [1])]
    assert find_differing(task, "validation", same, same) is None
    assert find_differing(task, "validation", same, []) is None

"""The photographs that the best model and the baseline answer differently."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from automl.maps.kept import EACH, find_differing, read_differing, save_differing
from automl.report.per_class import per_class
from automl.report.read import SearchData, answered, read_search
from automl.storage.storage import Storage
from automl.storage.trial_files import Answers
from automl.task import Task, open_task
from automl.task.task_data import Split
from automl.tasks.image_classification import ImageData
from search.config import TrialConfig
from tests.helpers.automl_cases import HERE
from tests.helpers.report_cases import made_up, save_search

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


@pytest.mark.parametrize("split", ["validation", "test"])
def test_the_report_shows_them(task: Task, tmp_path: Path, split: Split) -> None:
    folder = save_search(tmp_path, made_up(20))
    read: SearchData = read_search(folder.name, str(tmp_path))
    settings = read.metadata.settings.change(plan={"sampler": "grid"})
    settings = settings.change(terms={"test": split == "test"})
    search = replace(read, metadata=replace(read.metadata, settings=settings))
    assert answered(search).split == split
    true = np.arange(task.size(split)) % len(LABELS)
    of_best, of_baseline = answers(true, [0]), answers(true, [1, 2])
    assert search.best
    assert search.baseline
    for trial, kept in ((search.best, of_best), (search.baseline, of_baseline)):
        kept.save(search.metadata.location / trial.folder)
    (section,) = per_class(search)
    assert "differing" not in [plot.name for plot in section.plots]
    save_differing(task, split, [of_best], [of_baseline], Storage(str(folder)))
    (section,) = per_class(search)
    plot = section.plots[-1]
    assert plot.says.startswith(f"2 inputs of the {split} split are right with the best model")
    assert plot.figure
    html = plot.figure.element()
    assert html.count("<img") == 3
    assert "1: 1, not 2" in html
    save_differing(task, split, [of_best], [of_best], Storage(str(folder)))
    assert not (folder / "differing.npz").exists(), "nothing differs at a later end"
    (folder / "differing.npz").write_bytes(b"damaged")
    assert read_differing(Storage(str(folder))) is None

"""The numbers of a report, each against another way to compute it from the same study."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optuna.trial import FrozenTrial
from sklearn.metrics import f1_score

from automl.report.costs import pareto
from automl.report.per_class import per_class
from automl.report.read import SearchData, read_search
from automl.storage.trial_files import Answers
from search.config import TrialConfig
from search.record import State
from tests.helpers.report_cases import facts_of, frozen, made_up, plan_of, save_search


@pytest.fixture(scope="module")
def trials() -> list[FrozenTrial]:
    return made_up(120)


@pytest.fixture(scope="module")
def search(trials: list[FrozenTrial], tmp_path_factory: pytest.TempPathFactory) -> SearchData:
    storage = tmp_path_factory.mktemp("storage")
    save_search(storage, trials)
    return read_search("made-up", str(storage))


def make_search(storage: Path, trials: list[FrozenTrial], **plan: Any) -> SearchData:
    save_search(storage, trials, plan=plan_of(**plan))
    return read_search("made-up", str(storage))


def test_facts_that_were_never_measured_are_left_out(tmp_path: Path) -> None:
    import random

    config = TrialConfig()
    history = [{"epoch": 6, "resource": 6.0, "accuracy": 0.5}]
    profile = {"params": facts_of(config, random.Random(0))["params"]}
    trials = [frozen({}, {}, config, plan_of(), State.COMPLETE, history, f) for f in (profile, {})]
    search = make_search(tmp_path, trials)
    assert [trial.number for trial in pareto(search, "params")] == [0]


def test_worst_ten_of_many_classes_are_shown(trials: list[FrozenTrial], tmp_path: Path) -> None:
    search = make_search(tmp_path, trials)
    true = np.repeat(np.arange(30), 20)
    answered = np.where(np.arange(600) % 20 < true // 2, (true + 1) % 30, true)  # the later, the worse
    names = [f"class {i}" for i in range(30)]
    answers = Answers(labels=names, true=true, answered=answered, values=np.zeros(600))
    answers.save(search.metadata.location / search.best.folder)
    (section,) = per_class(search)
    classes, confusions = section.plots
    assert len(classes.table.rows) == 10
    f1 = f1_score(true, answered, average=None)
    assert [row[4] for row in classes.table.rows] == pytest.approx(sorted(f1)[:10])
    assert confusions.figure is None
    assert len(confusions.table.rows) == 10

"""The plot of training loss and accuracy."""

import json

import numpy as np
import pytest

from automl.report.curves import running_means, training_curves
from automl.report.read import read_search
from tests.helpers.report_cases import made_up, save_search


def test_the_running_mean_is_the_mean_of_all_steps_so_far() -> None:
    """Return the mean accuracy over the steps so far, at the end of each epoch. The last one is shorter."""
    steps = np.random.default_rng(0).random(25)
    ends = [10, 20, 25]
    history = [
        {"epoch": i, "steps": end, "train_accuracy": float(steps[begin:end].mean())}
        for i, (begin, end) in enumerate(zip([0, 10, 20], ends, strict=True), start=1)
    ]
    assert running_means(history) == pytest.approx([steps[:end].mean() for end in ends])


def test_both_accuracies_of_the_best_and_of_the_baseline(tmp_path) -> None:
    save_search(tmp_path, made_up(20))
    search = read_search("made-up", storage=str(tmp_path))
    plot = training_curves(search)
    accuracies, losses = plot.figure.data["training_accuracy"], plot.figure.data["training_loss"]
    assert {row["mean"] for row in accuracies} == {"running mean", "mean of the epoch"}
    assert len({row["way"] for row in accuracies}) == 2
    assert len(accuracies) == 2 * len(losses)
    last = search.best.history[-1]
    row = plot.table.rows[-1]
    assert row[2] == last["train_loss"]
    assert row[3] == pytest.approx(100 * last["train_accuracy"])
    assert "training accuracy, %" in json.dumps(plot.figure.specs())


def test_a_task_without_a_training_accuracy_has_the_loss_alone(tmp_path) -> None:
    save_search(tmp_path, made_up(12))
    search = read_search("made-up", storage=str(tmp_path))
    for trial in search.trials:
        for metrics in trial.history:
            metrics.pop("train_accuracy", None)
    plot = training_curves(search)
    assert list(plot.figure.data) == ["training_loss"]
    assert "accuracy" not in plot.says


def test_nothing_was_recorded_yet(tmp_path) -> None:
    save_search(tmp_path, made_up(2, running=2))
    search = read_search("made-up", storage=str(tmp_path))
    for trial in search.trials:
        trial.history = ()
    assert training_curves(search).figure is None

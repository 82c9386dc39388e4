"""Score cards and speeds of exported models."""

import csv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.metrics import confusion_matrix

from automl.export.checks import BATCH, ROUNDS, measure_speed
from automl.export.export_result import ExportResult
from automl.export.predict import run_predict
from automl.task.deployment import Arrays, Run
from automl.tasks.image_classification.data import open_split
from search.class_statistics import ScoreCard


def test_counts_match_predictions(exported: ExportResult, tmp_path: Path) -> None:
    """Every test image as a file, classified by `automl predict`, counted by scikit-learn."""
    test = open_split("digits", "test", size=24)
    pixels = (load_digits().images * (255 / 16)).round().astype(np.uint8)
    files = []
    for name in test.names():
        files.append(tmp_path / f"{name}.png")
        Image.fromarray(pixels[int(name.removeprefix("digit"))]).save(files[-1])
    answered = [
        int(prediction.values["label"]) for prediction in run_predict(exported.folder, files).predictions
    ]
    expected = confusion_matrix(test.labels.numpy(), answered, labels=range(10))
    scores = exported.scores
    np.testing.assert_array_equal(scores.matrix, expected)
    np.testing.assert_allclose(scores.recall, expected.diagonal() / expected.sum(1))
    assert scores.accuracy == pytest.approx(exported.test["accuracy"])
    assert scores.matrix.sum() == len(test)
    assert 0.5 < scores.accuracy < 1  # so that there is something to tell apart


def card(true: list[int], answered: list[int], count: int = 3) -> ScoreCard:
    labels = [f"label {i}" for i in range(count)]
    return ScoreCard.of(labels, np.array(true), np.array(answered))


def test_a_card_counts_answers(tmp_path: Path) -> None:
    scores = card([0, 0, 0, 1, 1, 1], [0, 1, 1, 0, 1, 2])
    assert scores.matrix.tolist() == [[1, 2, 0], [1, 1, 1], [0, 0, 0]]
    assert scores.accuracy == pytest.approx(2 / 6)
    assert scores.counts.tolist() == [3, 3, 0]
    np.testing.assert_allclose(scores.recall, [1 / 3, 1 / 3, np.nan])
    assert scores.confusions() == [
        ("label 0", "label 1", 2),
        ("label 1", "label 0", 1),
        ("label 1", "label 2", 1),
    ]
    scores.write_csv(tmp_path / "matrix.csv")
    with (tmp_path / "matrix.csv").open(newline="") as file:
        _, *lines = csv.reader(file)
    assert [list(map(int, line[1:])) for line in lines] == scores.matrix.tolist()


class Clock:
    """Fake clock that only advances when a model runs, by 1 ms and `each` ms per input."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ran: list[tuple[float, int]] = []

    def model(self, each: float) -> Run:
        def run(inputs: Arrays) -> Arrays:
            self.now += 1e-3 * (1 + each * len(inputs["x"]))
            self.ran.append((each, len(inputs["x"])))
            return inputs

        return run


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("automl.training.clock.time.perf_counter", lambda: clock.now)
    return clock


def test_latency_and_throughput(clock: Clock) -> None:
    speed = measure_speed(clock.model(1), {"x": np.zeros((100, 3))})
    assert speed.latency == pytest.approx(2)
    assert speed.throughput == pytest.approx(1e3 * BATCH / (1 + BATCH))
    assert speed.batch == BATCH
    assert clock.ran.count((1, 1)) == 1 + ROUNDS

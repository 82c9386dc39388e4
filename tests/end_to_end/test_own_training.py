"""The guide on training functions: its file, from a search to predictions."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "own-training.md"
EPOCHS, SEEDS = 4, 6


def last(output):
    return json.loads(output.strip().splitlines()[-1])


@pytest.fixture
def code():
    (block,) = re.findall(r"^```python\n(\"\"\"Handwritten digits.*?)^```", PAGE.read_text(), re.S | re.M)
    return block


@pytest.mark.slow("a whole search")
def test_from_a_training_function_to_predictions(automl, tmp_path, code):
    assert len(code.splitlines()) <= 40
    (tmp_path / "train.py").write_text(code)
    result = last(automl(
        "search", "--train", "train.py:train", "--metric", "accuracy", "--trials", 3, "--concurrent", 1,
        "--name", "digits", "--epochs", EPOCHS, "--confirm", "--top", 1, "--seeds", SEEDS, "--json",
    ))  # fmt: skip
    assert (result["trials"], result["errors"]) == (3, 0)
    assert {len(variant["scores"]) for variant in result["confirmation"]["variants"]} >= {SEEDS}
    automl("report")
    page = (tmp_path / "searches/digits/report/index.html").read_text()
    assert "those of the training function" in page

    exported = automl("export", "--baseline", "--out", "exports/digits")
    accuracy = float(re.search(r"^test +accuracy ([\d.]+) %$", exported, re.M)[1]) / 100
    pixels, digits = load_digits(return_X_y=True)
    images = np.kron(pixels.reshape(-1, 1, 8, 8) / 16, np.ones((2, 2)))
    np.savez(tmp_path / "input.npz", input=images)
    predicted = last(automl("predict", "exports/digits", "input.npz", "--json"))
    labels = [int(prediction["label"]) for prediction in predicted]
    assert accuracy > 0.15
    assert np.mean(labels == digits) == pytest.approx(accuracy, abs=0.1)

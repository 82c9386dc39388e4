"""A search over timm's and the user's own attention, to a deployed model."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from automl.config.device import device_name
from search.study import read_records
from tests.helpers import last
from tests.helpers.own_model import make_attention

# A later version, whose table and default types have one more, continues the search and confirms it.
LATER = """
from dataclasses import replace
from attention.attention_table import ATTENTIONS, RECORDS
from search import choices

RECORDS["new"] = replace(ATTENTIONS["ssa"], name="new")
choices.TYPES = (*choices.TYPES, "new")
from automl.cli.main import main

main(["search", "--resume", "gates", "--trials", "+1", "--confirm", "--top", "1", "--seeds", "6", "--json"])
"""

FAST = ("--epochs", 2, "--subset", 0.3, "--concurrent", 1)


@pytest.mark.slow("a whole search")
def test_from_own_modules_to_a_deployed_model(automl, tmp_path: Path) -> None:
    folder, types, trials = tmp_path, "timm:se,timm:eca,timm:cbam,mine.py:Gate,decomposed", 12
    make_attention(folder)
    output = automl(
        "search", "--space", "digits", "--attention", types, "--trials", trials, "--baseline-share", 0,
        "--name", "gates", *FAST, "--json",
    )  # fmt: skip
    result = last(output)
    assert (result["trials"], result["errors"]) == (trials, 0)
    stored = json.loads((folder / "searches/gates/search.json").read_text())["settings"]["attention"]
    assert stored.replace(f"{folder}/", "") == types

    done = subprocess.run([sys.executable, "-c", LATER], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = last(done.stdout)
    assert (result["trials"], result["errors"]) == (trials + 1, 0)
    assert result["confirmation"]["complete"]

    trained = automl(
        "train", "--space", "digits", "--attention", "mine.py:Gate", "--option", "kind=max",
        "--epochs", 1, "--subset", 0.3, "--name", "own",
    )  # fmt: skip
    export = next(line for line in trained.splitlines() if line.startswith("next")).split()
    automl(*export[export.index("export") :])
    pixels = np.random.default_rng(0).integers(0, 255, (8, 8), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "digit.png")
    (prediction,) = last(automl("predict", "exports/own", "digit.png", "--json"))
    assert len(prediction["probabilities"]) == 10

    (folder / "pooling.py").write_text((folder / "pooling.py").read_text() + "# changed\n")
    with pytest.raises(AssertionError, match=r"the code of .*mine\.py:Gate has changed; restore it"):
        automl("export", "--trust", "--run", export[export.index("--run") + 1], "--out", "again")


@pytest.mark.gpu
def test_from_a_whole_gpu_to_a_deployed_model(
    automl: Callable[..., str],
    gpus_per_trial: Callable[[float], list[str]],
    gpu: torch.device,
    tmp_path: Path,
) -> None:
    make_attention(tmp_path)
    result = last(automl(
        "search", "--space", "digits", "--attention", "mine.py:Gate", "--trials", 3, "--baseline-share", 0,
        *("--name", "gates", *FAST, *gpus_per_trial(1), "--confirm", "--top", 1, "--seeds", 6, "--json"),
    ))  # fmt: skip
    assert (result["trials"], result["errors"]) == (3, 0)
    assert result["confirmation"]["complete"]
    records = read_records(tmp_path / "searches" / "gates", "gates")
    assert {record.device for record in records} == {device_name(gpu)}
    assert any("mine.py:Gate" in str(record.config.to_json()) for record in records)
    automl("export", "--best", "--trust", "--out", "out")
    session = onnxruntime.InferenceSession(str(tmp_path / "out" / "model.onnx"))
    (image,) = session.get_inputs()
    shape = [side if isinstance(side, int) else 1 for side in image.shape]
    (probabilities,) = session.run(None, {image.name: np.zeros(shape, np.uint8)})
    assert probabilities.sum() == pytest.approx(1, abs=1e-5)


PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "own-training.md"
EPOCHS, SEEDS = 4, 6


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

"""Photographs and a model of one's own, or of a library, from the search to a prediction."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

AUTOML = Path(sys.executable).parent / "automl"

NET = """
from torch import nn
from layers import Block


class Net(nn.Module):
    def __init__(self, classes: int, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 2, 1)
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))
"""

LAYERS = """
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(width, width, 3, 1, 1), nn.BatchNorm2d(width), nn.ReLU())

    def forward(self, x):
        return x + self.body(x)
"""


@pytest.fixture
def folder(tmp_path):
    """Photographs of two classes, bright above and bright below; and a model of two files."""
    draw = np.random.default_rng(0)
    for part, count in (("train", 48), ("val", 16)):
        for kind, rows in (("above", slice(0, 20)), ("below", slice(20, 40))):
            (tmp_path / "photos" / part / kind).mkdir(parents=True)
            for i in range(count):
                pixels = draw.integers(0, 100, (40, 40, 3), dtype=np.uint8)
                pixels[rows] += 100
                Image.fromarray(pixels).save(tmp_path / "photos" / part / kind / f"{i}.png")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "mine.py").write_text(NET)
    (tmp_path / "models" / "layers.py").write_text(LAYERS)
    return tmp_path


@pytest.mark.parametrize(
    "backbone",
    [
        "models/mine.py:Net",
        pytest.param("torchvision:resnet18", marks=pytest.mark.long),
        pytest.param("timm:convnext_atto", marks=pytest.mark.long),
    ],
)
def test_is_searched_confirmed_reported_exported_and_predicts(folder, backbone):
    def automl(*arguments):
        done = subprocess.run(
            [AUTOML, *map(str, arguments)],
            cwd=folder,
            env={**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}"},
            capture_output=True,
            text=True,
            timeout=500,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def last(output):
        return json.loads(output.strip().splitlines()[-1])

    found = last(
        automl(
            "search", "--space", "folder", "--data", "photos", "--backbone", backbone, "--size", 32,
            "--trials", 2, "--epochs", 2, "--concurrent", 1, "--name", "mine", "--json",
        )
    )  # fmt: skip
    assert (found["trials"], found["errors"]) == (2, 0)
    model = found["best"]["config"]["model"]
    own = backbone.startswith("models/")
    assert model["backbone"] == (f"{folder}/{backbone}" if own else backbone)
    assert bool(model["code"]) == own

    verdict = last(automl("confirm", "--top", 1, "--seeds", 2, "--json"))
    assert verdict["complete"]
    page = automl("report").split()[1]
    assert Path(page).is_file()
    automl("export", "--best", "--out", "out")
    (prediction,) = last(automl("predict", "out", "photos/val/above/0.png", "--json"))
    assert set(prediction["probabilities"]) == {"above", "below"}

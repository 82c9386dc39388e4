"""From a folder of photographs to a served model, with backbone and attention of the user or a library."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import requests
from PIL import Image

from tests.helpers.own_model import make_attention, make_model
from tests.helpers.photographs import BROKEN, make_photographs
from tests.helpers.services import serve_mlflow

pytestmark = pytest.mark.slow("a whole search")


@pytest.fixture
def folder(tmp_path):
    make_photographs(tmp_path / "photos")
    make_model(tmp_path)
    make_attention(tmp_path)
    return tmp_path


def last(output):
    return json.loads(output.strip().splitlines()[-1])


def suggested(output, command):
    """The arguments of the first `COMMAND ...` that a command has suggested."""
    line = next(line for line in output.splitlines() if f"{command} " in line)
    program, _ = command.split(maxsplit=1)
    return shlex.split(line[line.index(command) :].removeprefix(program))


@pytest.mark.parametrize("backbone", ["models/mine.py:Net", "torchvision:resnet18", "timm:convnext_atto"])
def test_from_photographs_to_a_served_model_by_what_each_command_suggests(automl, folder, backbone):
    output = summary = automl("data", "photos", "--size", 32)
    assert f"{len(BROKEN)} that cannot be decoded: Training/above/{BROKEN[0]}" in output
    assert "Training/above/1.png and validation/above/once more.png" in output
    assert "imbalanced" in output
    output = automl(
        *suggested(output, "automl search"), "--backbone", backbone, "--attention", "timm:eca,mine.py:Gate",
        "--size", 32, "--trials", 2, "--epochs", 2, "--concurrent", 1, "--json",
    )  # fmt: skip
    turned = "1 turned upright by their EXIF orientation: Training/above/turned.jpeg"
    assert turned in summary
    assert turned in output
    result = last(output)
    assert result["search"].startswith("photos-")
    assert (result["trials"], result["errors"]) == (2, 0)
    model = result["best"]["config"]["model"]
    own = backbone.startswith("models/")
    assert model["backbone"] == (f"{folder}/{backbone}" if own else backbone)
    assert bool(model["code"]) == own

    output = automl("confirm", "--search", result["search"], "--top", 1, "--seeds", 6, "--json")
    verdict = last(output)
    assert verdict["complete"]
    page = automl(*suggested(output, "automl report")).split()[1]
    assert Path(page).is_file()
    export = suggested(output, "automl export")
    assert ("--best" in export) == (verdict["winner"] is not None), "else the plain backbone is deployed"
    output = automl(*export)
    _, exported, _ = suggested(output, "automl predict")
    predictions = last(automl("predict", exported, "photos/validation", "--json"))
    assert len(predictions) == 33
    assert set(predictions[0]["probabilities"]) == {"above", "below"}

    if own:  # test_main_job.py loads a model as the server does; those of libraries are served, too
        return
    Image.open(folder / "photos/validation/below/3.png").save(folder / "photo.jpg", quality=95)
    (prediction,) = last(automl("predict", exported, "photo.jpg", "--json"))
    with serve_mlflow(folder, *suggested(output, "mlflow models"), ping="ping") as address:
        card = (folder / exported / "MODEL_CARD.md").read_text()
        served, client = re.search(r"Served by `(.*?)`.*?```python\n(.*?)```", card, re.S).groups()
        assert served.startswith("mlflow models serve")
        client = client.replace("http://127.0.0.1:5000", address)
        done = subprocess.run(
            [sys.executable, "-c", client], cwd=folder, capture_output=True, text=True, check=True
        )
        assert done.stdout.startswith(f"['{prediction['label']}'] [0.")
        floats = np.full((1, 32, 32, 3), 0.5).tolist()
        refused = requests.post(f"{address}/invocations", json={"inputs": {"images": floats}}, timeout=60)
        assert refused.status_code == 400
        assert "images must be uint8 between 0 and 255; got floats between 0 and 1" in refused.text


def test_placements_on_a_shared_training_that_was_trained(automl, folder):
    """With eight of them; the first trial begins where the shared partial training ended."""
    common = ["--space", "folder", "--data", "photos", "--backbone", "models/mine.py:Net", "--size", 32]
    first = last(automl("search", *common, "--trials", 1, "--epochs", 3, "--name", "backbone", "--json"))
    shared_training = ["--weights", first["best"]["run_id"], "--epochs", 1]
    result = last(automl("search", *common, *shared_training, "--trials", 8, "--name", "placed", "--json"))
    assert (result["trials"], result["errors"]) == (8, 0)
    weights = result["best"]["config"]["model"]["weights"]
    assert weights.endswith(f"backbone/trials/{first['best']['number']:04d}/checkpoint.pt")
    automl("confirm", "--search", "placed", "--top", 1, "--seeds", 6)
    automl("export", "--best", "--search", "placed", "--out", "out", "--trust")

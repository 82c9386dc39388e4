"""Export of the model that a training function declares, and predictions with it."""

import json
import shutil
import subprocess
import sys

import numpy as np
import onnxruntime
import optuna
import pytest
import torch
from safetensors.torch import load_file

from automl.base.errors import InputError
from automl.export import run_export as export
from automl.export.formats import CARD, CONFIG, MLFLOW_MODEL, ONNX, WEIGHTS, forms_of
from automl.export.predict import run_predict
from automl.task import open_task
from automl.task.deployment import MODEL
from automl.tasks.function.space import function_space
from search.config import TrialConfig
from search.metric import Metric
from tests.helpers import FOLDER, others_slow
from tests.helpers.automl_cases import HERE, perturb
from tests.helpers.code_cases import CHOSEN

EXPORTS = FOLDER / "train_exports.py"
HISTORY = [{"epoch": 1, "score": 0.4, "test_score": 0.5}]


def open_function(name, file=EXPORTS):
    space = function_space(f"{file}:{name}", Metric(name="score", maximize=True))
    drawn = space(optuna.trial.FixedTrial(dict(space.baseline))).to_json()
    drawn["model"]["placement"] = {"body": {"type": "ssa"}}
    return open_task(TrialConfig.from_json(drawn), HERE)


def write(folder, name, file=EXPORTS, history=HISTORY):
    """Export a model whose parameters are random."""
    task = open_function(name, file)
    model = perturb(task.checkpoint_model().eval())
    return model, export._write(folder, task, model, CHOSEN, folder, history)


INTERFACES = {
    "tensor": ({"image": (1, 8, 8)}, {"output": (3,)}),
    "positional": ({"image": (1, 8, 8), "rows": ()}, {"output1": (3,), "output2": (4, 8, 8)}),
    "keywords": ({"mask": (1, 8, 8), "image": (1, 8, 8)}, {"logits": (3,), "mask_output": (4, 8, 8)}),
    "variadic": ({"input1": (1, 8, 8)}, {"output": (3,)}),
}


@pytest.mark.parametrize("name", others_slow(INTERFACES, "positional"))
def test_inputs_and_outputs_have_names_and_every_form_the_same_answers(name, tmp_path):
    model, result = write(tmp_path, name)
    inputs, outputs = INTERFACES[name]
    assert result.differences.keys() == {*forms_of(MODEL), MLFLOW_MODEL}
    assert result.test == {"score": 0.5}
    session = onnxruntime.InferenceSession(str(tmp_path / ONNX))
    for shapes, values in ((inputs, session.get_inputs()), (outputs, session.get_outputs())):
        assert {value.name: tuple(value.shape) for value in values} == {
            name: ("N", *shape) for name, shape in shapes.items()
        }
    (graph,) = json.loads((tmp_path / CONFIG).read_text())["graphs"].values()
    generator = np.random.default_rng(0)
    arrays = {
        entry["name"]: generator.integers(9, size=(3, *entry["shape"][1:])).astype(entry["dtype"])
        for entry in graph["inputs"]
    }
    expected = list(arrays.values())
    if name == "keywords":
        ours = model(**{key: torch.from_numpy(value) for key, value in arrays.items()})["logits"]
    else:
        ours = model(*map(torch.from_numpy, expected))
    first = ours[0] if isinstance(ours, tuple) else ours
    np.testing.assert_allclose(session.run(None, arrays)[0], first.detach(), rtol=1e-4, atol=1e-4)
    card = (tmp_path / CARD).read_text()
    assert "score 0.5" in card
    assert "train_exports.py" in card
    assert "real test inputs" not in card


@pytest.mark.slow("an export")
def test_predictions_have_labels(tmp_path):
    model, _ = write(tmp_path, "tensor", history=[{"epoch": 1, "score": 0.4}])
    images = np.random.default_rng(1).normal(size=(2, 1, 8, 8))  # float64, as NumPy makes them
    np.savez(tmp_path / "input.npz", image=images)
    first, _ = run_predict(tmp_path, [tmp_path / "input.npz"]).predictions
    scores = model(torch.from_numpy(images).float())[0]
    label = "abc"[scores.argmax()]
    assert first.text == f"{label} (score {scores.max():.4g})"
    assert first.values["label"] == label
    assert first.values["scores"] == pytest.approx(dict(zip("abc", scores.tolist(), strict=True)), abs=1e-4)


@pytest.mark.slow("in a process of its own")
def test_without_a_declared_model_a_script_rebuilds_it(tmp_path):
    file = tmp_path / "mine" / "train_exports.py"
    file.parent.mkdir()
    shutil.copy(EXPORTS, file)
    folder = tmp_path / "export"
    folder.mkdir()
    model, result = write(folder, "undeclared", file)
    assert set(result.left_out) == {*forms_of(MODEL), MLFLOW_MODEL}
    assert not result.predicts
    file.write_text("the file has changed")
    code = "import torch; from rebuild import model; print(model(torch.ones(1, 1, 8, 8))[0].tolist())"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    expected = model(torch.ones(1, 1, 8, 8))[0].tolist()
    assert json.loads(done.stdout) == pytest.approx(expected, abs=1e-6)
    assert "head.weight" in load_file(folder / WEIGHTS)
    assert "from rebuild import model" in (folder / CARD).read_text()
    with pytest.raises(InputError, match=r"declares no model with trial.export"):
        run_predict(folder, [folder / "input.npz"])


BAD = {
    "scalar": r"each output .* must have the batch as its first dimension; 'output' has the shape \(\)",
    "fails": r"the model in trial.export fails on its example: RuntimeError: ",
}


@pytest.mark.parametrize("name", BAD)
def test_models_that_cannot_be_deployed_have_one_message_before_a_search(name):
    with pytest.raises(InputError, match=BAD[name]):
        open_function(name).notes()


def test_a_model_that_no_format_takes_is_exported_as_weights(tmp_path):
    _, result = write(tmp_path, "branches")
    assert set(result.left_out) == {*forms_of(MODEL), MLFLOW_MODEL}
    assert (tmp_path / WEIGHTS).exists()


def test_changed_code_is_refused(tmp_path):
    file = tmp_path / "train_exports.py"
    shutil.copy(EXPORTS, file)
    task = open_function("tensor", file)
    file.write_text(file.read_text() + "\n")
    with pytest.raises(InputError, match=r"train_exports.py:tensor has changed"):
        task.checkpoint_model()

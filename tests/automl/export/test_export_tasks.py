"""Export of every task, and predictions without its dataset."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import optuna
import pytest
import torch
from torch import nn

from attention import Spec
from automl.base.errors import InputError
from automl.export import run_export as export
from automl.export.chosen import Chosen
from automl.export.export_result import ExportResult
from automl.export.formats import CONFIG, MLFLOW_MODEL, ONNX, forms_of
from automl.export.predict import run_predict
from automl.storage.storage import Storage
from automl.task import Task, open_task
from automl.task.deployment import MODEL
from backbones import build, sites
from tests.helpers import others_slow, tabular
from tests.helpers.automl_cases import HERE, perturb, sequence_config

CHOSEN = Chosen(name="name", checkpoint=Storage("checkpoint"), what="the run that was named")
STEPS = 12

LARNN = {"backbone": "larnn", "options": {"hidden": 6, "heads": 2, "window": 3, "layers": 2}}
LSTM = {"backbone": "lstm", "options": {"hidden": 6, "layers": 1}}
CNN = {"backbone": "resnet1d", "options": {"width": 0.0625, "blocks": 1}}


def attended(attention: str) -> dict[str, Any]:
    model = build("resnet1d", classes=2, in_channels=2, **CNN["options"])
    middle = sites(model, torch.zeros(1, 2, STEPS))[-1].name
    return {**CNN, "placement": {middle: Spec(attention)}}


CASES: dict[str, tuple[dict[str, Any] | str | None, int]] = {  # the model, and the shortest sequence
    "larnn, lengths": (LARNN, 5),
    "lstm, lengths": (LSTM, 5),
    "cnn and ssa": ("ssa", STEPS),
    "cnn and multihead, lengths": ("multihead", 5),
    "table": (None, 0),
}


@pytest.fixture(scope="module", params=others_slow(CASES, "cnn and multihead, lengths"))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Task:
    model, shortest = CASES[request.param]
    if model is None:
        return open_task(tabular.draw(optuna.trial.FixedTrial(tabular.draw.baseline)), HERE)  # type: ignore[attr-defined]
    folder = tmp_path_factory.mktemp("data")
    model = attended(model) if isinstance(model, str) else model
    return open_task(sequence_config(folder, shortest=shortest, model=model), HERE)


@pytest.fixture(scope="module")
def model(case: Task) -> nn.Module:
    return perturb(case.model().eval())


@pytest.fixture(scope="module")
def result(case: Task, model: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> ExportResult:
    folder = tmp_path_factory.mktemp("export")
    return export._write(folder, case, model, CHOSEN, folder, None)


def test_every_form_answers_like_the_model(case: Task, result: ExportResult) -> None:
    assert result.differences.keys() == {*forms_of(MODEL), MLFLOW_MODEL}
    assert all(0 <= difference <= case.tolerance for difference in result.differences.values())
    assert set(result.test) >= {case.metric.name}


def test_deployed_model_has_the_scores_of_the_trained_one(case: Task, result: ExportResult) -> None:
    """So normalisation inside the model matches that of the evaluation."""
    if result.scores is None:
        assert case.metric.name == "rmse"
        x, y = case.table("test")  # type: ignore[attr-defined]
        session = onnxruntime.InferenceSession(str(result.folder / ONNX))
        weights = session.run(["weight"], {"measures": x.numpy()})[0]
        assert np.sqrt(np.mean((weights - y.numpy()) ** 2)) == pytest.approx(result.test["rmse"], rel=1e-4)
    else:
        assert result.scores.accuracy == pytest.approx(result.test["accuracy"])
        assert result.scores.matrix.sum() == case.size("test")


def test_inputs_and_outputs_are_described(case: Task, result: ExportResult) -> None:
    interface = json.loads((Path(str(result.folder)) / CONFIG).read_text())
    session = onnxruntime.InferenceSession(str(result.folder / ONNX))
    (graph,) = interface["graphs"].values()
    for kind, values in (("inputs", session.get_inputs()), ("outputs", session.get_outputs())):
        assert [(tensor["name"], tensor["shape"]) for tensor in graph[kind]] == [
            (v.name, v.shape) for v in values
        ]
    assert all(tensor["shape"][0] == "N" for tensor in (*graph["inputs"], *graph["outputs"]))


@pytest.mark.parametrize("case", ["larnn, lengths", "cnn and multihead, lengths"], indirect=True)
def test_padding_does_not_matter(case: Task, model: nn.Module) -> None:
    deployment = case.deployment(model)
    inputs = case.model_inputs("test", 8)
    assert inputs["lengths"].min() < STEPS
    expected = deployment.run(inputs)["probabilities"]
    behind = torch.arange(STEPS) >= inputs["lengths"][:, None]
    changed = {**inputs, "values": inputs["values"].masked_fill(behind[:, None], 1e6)}
    np.testing.assert_allclose(deployment.run(changed)["probabilities"], expected, atol=1e-6)


@pytest.mark.slow("another export")
@pytest.mark.parametrize("case", ["cnn and ssa"], indirect=True)
def test_any_length(result: ExportResult) -> None:
    session = onnxruntime.InferenceSession(str(result.folder / ONNX))
    assert session.get_inputs()[0].shape == ["N", 2, "T"]
    for steps in (9, STEPS, 31):
        values = np.random.default_rng(0).normal(size=(3, 2, steps)).astype(np.float32)
        assert session.run(None, {"values": values})[0].shape == (3, 3)


def series_csv(file: Path, values: np.ndarray) -> None:
    """The channels have another order than in training."""
    lines = ["series,time,dim1,dim0"]
    for name, (first, second) in zip("ab", values.tolist(), strict=True):
        lines += [f"{name},{t},{y},{x}" for t, (x, y) in enumerate(zip(first, second, strict=True))]
    file.write_text("\n".join(lines))


def series_npz(file: Path, values: np.ndarray) -> None:
    np.savez(file, x=values)


WRITERS: dict[str, Callable[[Path, np.ndarray], None]] = {".csv": series_csv, ".npz": series_npz}


@pytest.mark.parametrize("case", ["cnn and multihead, lengths"], indirect=True)
@pytest.mark.parametrize("suffix", WRITERS)
def test_series_are_predicted(
    suffix: str, case: Task, model: nn.Module, result: ExportResult, tmp_path: Path
) -> None:
    """Predictions for two series of 7 steps match those of the padded series."""
    values = np.random.default_rng(1).normal(size=(2, 2, 7)).astype(np.float32)
    file = tmp_path / f"mine{suffix}"
    WRITERS[suffix](file, values)
    predictions = run_predict(str(result.folder), [file]).predictions
    padded = torch.from_numpy(np.pad(values, ((0, 0), (0, 0), (0, STEPS - 7))))
    inputs = {"values": padded, "lengths": torch.tensor([7, 7])}
    expected = case.deployment(model).run(inputs)["probabilities"]
    for prediction, row in zip(predictions, expected, strict=True):
        assert prediction.input.startswith(str(file))
        np.testing.assert_allclose(list(prediction.values["probabilities"].values()), row, atol=1e-4)
        assert prediction.values["label"] == str(row.argmax())
        assert prediction.text == f"{prediction.values['label']} ({prediction.values['probability']:.1%})"


@pytest.mark.parametrize("case", ["cnn and multihead, lengths"], indirect=True)
@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros((1, 2, 13))}, "x.0. has 13 steps; this model takes at most 12"),
        ({"x": np.zeros((1, 3, 12))}, "x.0. has 3 channels; the model was trained on 2"),
        ({"x": np.zeros((1, 2, 12)), "channels": np.array(["a", "b"])}, "has the channels a, b; the model"),
    ],
)
def test_series_that_do_not_fit(
    arrays: dict[str, np.ndarray], message: str, result: ExportResult, tmp_path: Path
) -> None:
    np.savez(tmp_path / "mine.npz", **arrays)
    with pytest.raises(InputError, match=message):
        run_predict(str(result.folder), [tmp_path / "mine.npz"])

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from automl_cases import opened

from automl.data.images import open_split
from automl.data.images.image_augment import centre_crop
from automl.export import parity
from automl.export import run_export as export
from automl.export.quantize import left_alone, quantize_int8
from automl.export.run_export import ExportResult, run_export
from automl.tasks.deployment import Arrays, Deployment, as_arrays
from automl.tasks.image_classification import ImageClassification
from automl.trials.train import TrainResult

Level = onnxruntime.GraphOptimizationLevel


def run(file: Path, inputs: np.ndarray, level: Any = Level.ORT_ENABLE_ALL) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"images": inputs})[0])


@pytest.fixture(scope="module")
def test_split() -> tuple[np.ndarray, np.ndarray]:
    """Return all test inputs and their labels."""
    test = open_split("digits", "test", size=24)
    return centre_crop(test.gather(torch.arange(len(test))), test.aspect, 24).numpy(), test.labels.numpy()


def test_reported_figures_are_measured(
    quantized: ExportResult, test_split: tuple[np.ndarray, np.ndarray]
) -> None:
    inputs, labels = test_split
    folder, facts = quantized.folder, quantized.quantized
    assert facts is not None
    whole, small = (run(folder / name, inputs).argmax(1) for name in ("model.onnx", "model.int8.onnx"))
    assert facts.accuracy == pytest.approx((small == labels).mean())
    assert facts.difference == pytest.approx((small == labels).mean() - (whole == labels).mean())
    assert facts.agreement == pytest.approx((small == whole).mean())
    size, before = ((folder / name).stat().st_size for name in ("model.int8.onnx", "model.onnx"))
    assert (facts.size, facts.size_ratio) == (size, size / before)
    assert facts.size_ratio < 0.4
    assert facts.latency_ratio == quantized.speeds["model.int8.onnx"].ratio > 0
    assert facts.calibrated == 229  # all there are
    page = (folder / "MODEL_CARD.md").read_text()
    assert "ranges taken from 229 training\ninputs" in page
    assert f"| accuracy | {facts.accuracy:.4f} |" in page
    assert f"| difference from `model.onnx` | {facts.difference:+.4f} |" in page
    assert "model.int8.onnx" not in quantized.differences  # it is another model, not another form


def test_quantised_model_gives_nearly_the_same_answers(
    quantized: ExportResult, test_split: tuple[np.ndarray, np.ndarray]
) -> None:
    file = quantized.folder / "model.int8.onnx"
    graph = onnx.load(file).graph
    kinds = [node.op_type for node in graph.node]
    assert kinds.count("Conv") == 23
    held = {initializer.name: initializer for initializer in graph.initializer}
    weights = [held[n.input[0]] for n in graph.node if n.op_type == "DequantizeLinear" and n.input[0] in held]
    assert (
        sum(weight.data_type == onnx.TensorProto.INT8 and len(weight.dims) == 4 for weight in weights) == 19
    )
    inputs, _ = test_split
    whole, small = run(quantized.folder / "model.onnx", inputs), run(file, inputs)
    np.testing.assert_allclose(small.sum(1), 1, atol=1e-5)
    assert 0 < np.abs(small - whole).mean() < 0.02


def test_optimising_the_graph_does_not_change_it(
    quantized: ExportResult, test_split: tuple[np.ndarray, np.ndarray]
) -> None:
    """At 24 px the third stage pools a side of 3, which onnxruntime gets wrong between 8-bit convolutions."""
    inputs, _ = test_split
    file = quantized.folder / "model.int8.onnx"
    optimised, plain = run(file, inputs), run(file, inputs, Level.ORT_DISABLE_ALL)
    np.testing.assert_allclose(optimised, plain, atol=0.03)
    graph = onnx.load(quantized.folder / "model.onnx").graph
    names = left_alone(graph)
    pools = [node for node in graph.node if node.op_type == "AveragePool"]
    assert len(names) == 1 + len(pools) == 4


@pytest.mark.usefixtures("at_work")
def test_calibrated_on_training_images_alone(
    trained: TrainResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[np.ndarray] = []
    asked: list[str] = []
    model_inputs: Callable[..., dict[str, torch.Tensor]] = ImageClassification.model_inputs

    def quantize(source: Path, target: Path, inputs: Arrays) -> None:
        batches.append(inputs["images"])
        raise OSError(5, "enough")

    def spy(task: ImageClassification, split: Any, count: int) -> dict[str, torch.Tensor]:
        asked.append(split)
        return model_inputs(task, split, count)

    monkeypatch.setattr(export, "quantize_int8", quantize)
    monkeypatch.setattr(ImageClassification, "model_inputs", spy)
    monkeypatch.setattr(export, "save_mlflow", lambda *args: None)
    monkeypatch.setattr(parity, "_forms", lambda *_: {})
    with pytest.raises(ValueError, match="enough"):
        run_export(tmp_path / "out", run=trained.run_id, quantize="int8")
    assert not (tmp_path / "out").exists()
    assert asked == ["test", "train"]  # what the exported forms are compared on, and what is calibrated on
    training_images = {
        image.tobytes()
        for (image,) in zip(as_arrays(opened().model_inputs("train", 229))["images"], strict=True)
    }
    (inputs,) = batches
    assert len(inputs) == len(training_images) == 229
    assert {image.tobytes() for image in inputs} == training_images


def test_nothing_is_left_beside_it(quantized: ExportResult, tmp_path: Path) -> None:
    quantize_int8(
        quantized.folder / "model.onnx", tmp_path / "a.onnx", as_arrays(opened().model_inputs("train", 40))
    )
    assert [file.name for file in tmp_path.iterdir()] == ["a.onnx"]
    assert {file.name for file in quantized.folder.iterdir()} >= {
        "model.int8.onnx",
        "model.onnx",
        "mlflow-model",
    }


def test_task_without_labels_is_rejected(
    monkeypatch: pytest.MonkeyPatch, trained: TrainResult, at_work: Path, tmp_path: Path
) -> None:
    deployment: Callable[..., Deployment] = ImageClassification.deployment
    monkeypatch.setattr(
        ImageClassification, "deployment", lambda *arguments: replace(deployment(*arguments), labels=())
    )
    monkeypatch.setattr(export, "save_mlflow", lambda *args: None)
    monkeypatch.setattr(parity, "_forms", lambda *_: {})
    with pytest.raises(
        ValueError, match="--quantize states what it costs in accuracy, which the task image-classif"
    ):
        run_export(tmp_path / "out", run=trained.run_id, quantize="int8")
    result = run_export(tmp_path / "out", run=trained.run_id)
    assert result.scores is None

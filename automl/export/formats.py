"""The formats of an exported model, each written to its file in one folder."""

import json
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.utils import parametrize

from automl.export.onnx_program import for_onnx
from automl.tasks.deployment import BATCH_AXIS, Deployment, Signature

ONNX, INT8, PT2, WEIGHTS = "model.onnx", "model.int8.onnx", "model.pt2", "model.safetensors"
SHORTEST = 8  # an axis that may vary: a model's first convolutions want a few positions
CONFIG, CARD, MLFLOW_MODEL = "config.json", "MODEL_CARD.md", "mlflow-model"


def save_weights(folder: Path, model: nn.Module) -> None:
    """`model.safetensors`."""
    save_file({k: v.contiguous() for k, v in model.state_dict().items()}, folder / WEIGHTS)


def bake(model: nn.Module) -> None:
    """Replace parametrised weights, which are computed at every use, by the weights alone."""
    for module in list(model.modules()):
        if parametrize.is_parametrized(module):
            for name in list(module.parametrizations):  # type: ignore[arg-type]
                parametrize.remove_parametrizations(module, name, leave_parametrized=True)


def save_programs(folder: Path, deployment: Deployment) -> None:
    """`model.pt2` and `model.onnx`."""
    # An axis of one name is one dimension, wherever it is.
    names = {name for axes in deployment.dynamic.values() for name in axes.values()}
    dims = {name: torch.export.Dim(name, min=SHORTEST) for name in names}
    dims[BATCH_AXIS] = torch.export.Dim(BATCH_AXIS, min=1)
    shapes = tuple(
        {axis: dims[name] for axis, name in deployment.axes(key).items()} for key in deployment.inputs
    )
    module = deployment.module.eval().requires_grad_(False)
    program = torch.export.export(module, tuple(deployment.inputs.values()), dynamic_shapes=shapes)
    torch.export.save(program, folder / PT2)
    torch.onnx.export(
        for_onnx(program),
        (),
        folder / ONNX,
        dynamo=True,
        external_data=False,
        input_names=list(deployment.inputs),
        output_names=list(deployment.outputs),
        verbose=False,
    )
    _name_axes(folder / ONNX, deployment)


def save_mlflow(
    folder: Path, inputs: Sequence[Signature], outputs: Sequence[Signature], labels: Sequence[str]
) -> None:
    """`mlflow-model`: the ONNX model with what checks its inputs and names its answers, and requirements."""
    import mlflow.pyfunc
    from mlflow.environment_variables import MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR
    from mlflow.models import ModelSignature
    from mlflow.types import Schema

    MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR.set(False)  # of two files on this disk

    takes, gives = ([one.to_json() for one in part] for part in (inputs, outputs))
    requirements = [f"{name}=={version(name)}" for name in ("mlflow", "onnxruntime", "numpy")]
    with TemporaryDirectory() as scratch:
        about = Path(scratch) / "about.json"
        about.write_text(json.dumps({"labels": list(labels), "inputs": takes, "outputs": gives}))
        mlflow.pyfunc.save_model(
            str(folder / MLFLOW_MODEL),
            python_model=str(Path(__file__).with_name("served_model.py")),
            artifacts={"model": str(folder / ONNX), "about": str(about)},
            # Of the outputs alone: by one of the inputs MLflow would convert what the model is to refuse.
            signature=ModelSignature(outputs=Schema([_tensor_spec(value) for value in outputs])),
            metadata={"inputs": takes},
            pip_requirements=requirements,
        )


def _tensor_spec(value: Signature) -> Any:
    from mlflow.types import TensorSpec

    shape = tuple(-1 if isinstance(size, str) else size for size in value.shape)
    return TensorSpec(np.dtype(value.dtype), shape, value.name)


def _name_axes(file: Path, deployment: Deployment) -> None:
    """Call the axes that vary by their names in the model's inputs and outputs: PyTorch makes some up."""
    import onnx

    model = onnx.load(file)
    names = {}
    for value in (*model.graph.input, *model.graph.output):
        for axis, name in deployment.axes(value.name).items():
            names[value.type.tensor_type.shape.dim[axis].dim_param] = name
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for dimension in value.type.tensor_type.shape.dim:
            if dimension.dim_param in names and dimension.dim_param:
                dimension.dim_param = names[dimension.dim_param]
    onnx.save(model, file)

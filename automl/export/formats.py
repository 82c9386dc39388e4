"""The formats of an exported model, each written to its file in one folder."""

from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.utils import parametrize

ONNX, INT8, PT2, WEIGHTS = "model.onnx", "model.int8.onnx", "model.pt2", "model.safetensors"
CONFIG, CARD, MLFLOW_MODEL = "config.json", "MODEL_CARD.md", "mlflow-model"
BATCH_AXIS = "N"


def save_weights(folder: Path, model: nn.Module) -> None:
    """`model.safetensors`."""
    save_file({k: v.contiguous() for k, v in model.state_dict().items()}, folder / WEIGHTS)


def bake(model: nn.Module) -> None:
    """Replace parametrised weights, which are computed at every use, by the weights alone."""
    for module in list(model.modules()):
        if parametrize.is_parametrized(module):
            for name in list(module.parametrizations):  # type: ignore[arg-type]
                parametrize.remove_parametrizations(module, name, leave_parametrized=True)


def save_programs(folder: Path, module: nn.Module, example: Tensor) -> None:
    """`model.pt2` and `model.onnx`. example: the raw inputs that the module is traced with, of any number."""
    program = torch.export.export(
        module.eval(), (example,), dynamic_shapes=({0: torch.export.Dim(BATCH_AXIS, min=1)},)
    )
    torch.export.save(program, folder / PT2)
    torch.onnx.export(
        program,
        (),
        folder / ONNX,
        dynamo=True,
        external_data=False,
        input_names=["images"],
        output_names=["probabilities"],
        verbose=False,
    )
    _name_batch(folder / ONNX)


def save_mlflow(folder: Path, example: Tensor, expected: np.ndarray) -> None:
    """`mlflow-model`: the ONNX model with its signature and requirements."""
    import mlflow.onnx
    import onnx
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    signature = ModelSignature(
        inputs=Schema([TensorSpec(np.dtype("uint8"), (-1, *example.shape[1:]), "images")]),
        outputs=Schema([TensorSpec(np.dtype("float32"), (-1, *expected.shape[1:]), "probabilities")]),
    )
    requirements = [f"{name}=={version(name)}" for name in ("mlflow", "onnx", "onnxruntime", "numpy")]
    mlflow.onnx.save_model(
        onnx.load(folder / ONNX),
        str(folder / MLFLOW_MODEL),
        signature=signature,
        pip_requirements=requirements,
    )


def _name_batch(file: Path) -> None:
    """Call the batch's dimension `N` in the model's input and output: PyTorch makes up a name for it."""
    import onnx

    model = onnx.load(file)
    made_up = model.graph.input[0].type.tensor_type.shape.dim[0].dim_param
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for dimension in value.type.tensor_type.shape.dim:
            if dimension.dim_param == made_up:
                dimension.dim_param = BATCH_AXIS
    onnx.save(model, file)

"""Compares each exported form, read back from its file, with the trained model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from automl.export.formats import MLFLOW_MODEL, ONNX, PT2
from automl.export.onnx_session import open_onnx
from automl.tasks import Task
from automl.tasks.deployment import Arrays, Deployment, Run, count


def check_parity(
    folder: Path, task: Task, deployment: Deployment, inputs: Arrays, expected: Arrays
) -> Mapping[str, float]:
    """How far each form's outputs for the raw `inputs` are from the `expected` ones, as the task has it.

    Raises RuntimeError for one that is further than the task's tolerance.
    """
    differences = {
        name: task.compare(expected, run(inputs)) for name, run in _forms(folder, deployment).items()
    }
    for name, difference in differences.items():
        if not difference <= task.tolerance:
            raise RuntimeError(
                f"{name} differs from the trained model by {difference:.2g}, more than {task.tolerance:g}, "
                f"on {count(inputs)} test inputs; nothing was exported"
            )
    return differences


def _forms(folder: Path, deployment: Deployment) -> dict[str, Run]:
    """Each exported form, read back from its file, as a function of raw inputs."""
    import mlflow.pyfunc

    program = torch.export.load(folder / PT2).module()
    served = mlflow.pyfunc.load_model(str(folder / MLFLOW_MODEL))

    def torch_export(inputs: Arrays) -> Arrays:
        with torch.inference_mode():
            found: Any = program(*(torch.from_numpy(inputs[name]) for name in deployment.inputs))
        return deployment.named(found)

    def mlflow_model(inputs: Arrays) -> Arrays:
        found = served.predict(dict(inputs))
        return {name: np.asarray(found[name]) for name in deployment.outputs}

    return {ONNX: open_onnx(folder / ONNX), PT2: torch_export, MLFLOW_MODEL: mlflow_model}

"""Whether each exported form, read back from its file, answers as the trained model does."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from automl.export.formats import MLFLOW_MODEL, ONNX, PT2
from automl.export.onnx_session import open_onnx
from automl.export.score_card import Run

TOLERANCE = 1e-4  # the largest difference of a probability that two runtimes may have


def check_parity(folder: Path, inputs: np.ndarray, expected: np.ndarray) -> Mapping[str, float]:
    """The largest absolute difference of each form's output from what is `expected` for the raw `inputs`.

    Raises RuntimeError for one that is larger than TOLERANCE.
    """
    differences = {name: float(np.abs(run(inputs) - expected).max()) for name, run in _forms(folder).items()}
    for name, difference in differences.items():
        if not difference <= TOLERANCE:
            raise RuntimeError(
                f"{name} differs from the trained model by {difference:.2g}, more than {TOLERANCE:g}, on "
                f"{len(inputs)} test inputs; nothing was exported"
            )
    return differences


def _forms(folder: Path) -> dict[str, Run]:
    """Each exported form, read back from its file, as a function of raw inputs."""
    import mlflow.pyfunc

    program = torch.export.load(folder / PT2).module()
    served = mlflow.pyfunc.load_model(str(folder / MLFLOW_MODEL))

    def torch_export(inputs: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            output: Any = program(torch.from_numpy(inputs))
        return np.asarray(output)

    return {
        ONNX: open_onnx(folder / ONNX),
        PT2: torch_export,
        MLFLOW_MODEL: lambda inputs: np.asarray(served.predict({"images": inputs})["probabilities"]),
    }

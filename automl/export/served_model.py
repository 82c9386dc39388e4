"""What `mlflow-model` runs: MLflow copies this file into the model, so that it needs nothing else of ours.

It checks what it is given, and says in words what is wrong. A signature would not: by it, MLflow's server
turns an image of floats between 0 and 1 into one of zeros, and answers.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import onnxruntime
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE


class ServedModel(mlflow.pyfunc.PythonModel):
    """From named arrays to the outputs; of a classifier also `label` and `probability` of each input."""

    def load_context(self, context: Any) -> None:
        about = json.loads(Path(context.artifacts["about"]).read_text())
        graph = about["graphs"]["model"]
        self.labels, self.inputs, self.outputs = about["labels"], graph["inputs"], graph["outputs"]
        self.session = onnxruntime.InferenceSession(
            context.artifacts["model"], providers=["CPUExecutionProvider"]
        )

    # MLflow takes types in its signature for those of a table's rows, and warns.
    def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]
        """A mapping of arrays or lists by name; where there is one input, the array or list alone will do.

        Raises MlflowException, which a server answers with 400, for what does not fit.
        """
        names = [one["name"] for one in self.inputs]
        given = model_input
        if not isinstance(given, Mapping):
            given = {names[0]: given} if len(names) == 1 else None
        if given is None or set(given) != set(names):
            there = ", ".join(map(str, given)) if isinstance(given, Mapping) else type(model_input).__name__
            raise refused(f"the inputs are {', '.join(names)}, each a list by its name; got {there}")
        arrays = {one["name"]: array(given[one["name"]], one) for one in self.inputs}
        found = self.session.run([one["name"] for one in self.outputs], arrays)
        answer: dict[str, Any] = {one["name"]: value for one, value in zip(self.outputs, found, strict=True)}
        if self.labels:
            scores = found[0]
            answer["label"] = np.array([self.labels[i] for i in scores.argmax(-1)])
            answer["probability"] = scores.max(-1)
            answer["labels"] = np.array(self.labels)  # of the probabilities, in their order
        return answer


def array(value: Any, expected: Mapping[str, Any]) -> np.ndarray:
    """`value` in the type and shape that an input has."""
    name, kind, shape = expected["name"], np.dtype(expected["dtype"]), expected["shape"]
    try:
        found = np.asarray(value)
    except ValueError:
        raise refused(f"{name} must be one array; got lists of different lengths") from None
    said = f"({', '.join(map(str, shape))})"
    if len(found.shape) != len(shape) or any(
        isinstance(size, int) and size != there for size, there in zip(shape, found.shape, strict=True)
    ):
        raise refused(f"{name} must be {kind} of shape {said}, N inputs at once; got the shape {found.shape}")
    if not len(found):
        raise refused(f"{name} must hold one input or more; got none")
    if found.dtype.kind not in "iufb":
        raise refused(f"{name} must hold numbers of {kind}; got {found.dtype}")
    if kind.kind == "f":
        return found.astype(kind)
    if found.dtype.kind == "f":
        if kind == np.uint8 and found.min() >= 0 and 0 < found.max() <= 1:
            raise refused(
                f"{name} must be uint8 between 0 and 255; got floats between 0 and 1. Multiply them by 255 "
                f"and round; normalisation is inside the model"
            )
        if (broken := found[found % 1 != 0]).size:  # NaN, too
            raise refused(f"{name} must be whole numbers of {kind}; got floats such as {broken[0]:g}")
    limits = np.iinfo(kind)
    if not limits.min <= found.min() <= found.max() <= limits.max:
        raise refused(
            f"{name} must lie between {limits.min} and {limits.max}; got {found.min():g} to {found.max():g}"
        )
    return found.astype(kind)


def refused(why: str) -> MlflowException:
    return MlflowException(why, error_code=INVALID_PARAMETER_VALUE)


mlflow.models.set_model(ServedModel())

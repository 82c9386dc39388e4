"""Serve a model in `mlflow-model`. MLflow copies this file into the model, so it imports nothing else.

It checks inputs and reports errors in words. A signature would not: with it, MLflow's server converts an
image of floats between 0 and 1 to zeros without an error.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE


class ServedModel(mlflow.pyfunc.PythonModel):
    """Model that maps named arrays to its outputs. A classifier adds `label` and `probability`."""

    def load_context(self, context: Any) -> None:
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # files in the home folder, at import
        import onnxruntime

        about = json.loads(Path(context.artifacts["about"]).read_text())
        graph = about["graphs"]["model"]
        self.labels, self.inputs, self.outputs = about["labels"], graph["inputs"], graph["outputs"]
        self.session = onnxruntime.InferenceSession(
            context.artifacts["model"], providers=["CPUExecutionProvider"]
        )

    # With type hints, MLflow would expect rows of a table, and warn.
    def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]
        """Return the outputs for a mapping of arrays or lists. A single input needs no name.

        Raise MlflowException for invalid inputs. A server responds with status 400.
        """
        names = [spec["name"] for spec in self.inputs]
        arguments = model_input
        if not isinstance(arguments, Mapping):
            arguments = {names[0]: arguments} if len(names) == 1 else None
        if arguments is None or set(arguments) != set(names):
            received = (
                ", ".join(map(str, arguments))
                if isinstance(arguments, Mapping)
                else type(model_input).__name__
            )
            raise refused(f"the inputs are {', '.join(names)}, each a list by its name; got {received}")
        arrays = {spec["name"]: array(arguments[spec["name"]], spec) for spec in self.inputs}
        values = self.session.run([spec["name"] for spec in self.outputs], arrays)
        answer: dict[str, Any] = {
            spec["name"]: value for spec, value in zip(self.outputs, values, strict=True)
        }
        if self.labels:
            scores = values[0]
            answer["label"] = np.array([self.labels[i] for i in scores.argmax(-1)])
            answer["probability"] = scores.max(-1)
            answer["labels"] = np.array(self.labels)  # in the order of the probabilities
        return answer


def array(value: Any, expected: Mapping[str, Any]) -> np.ndarray:
    """Convert a value to the type of an input. Raise MlflowException if type or shape do not fit."""
    name, kind, shape = expected["name"], np.dtype(expected["dtype"]), expected["shape"]
    try:
        converted = np.asarray(value)
    except ValueError:
        raise refused(f"{name} must be one array; got lists of different lengths") from None
    shape_text = f"({', '.join(map(str, shape))})"
    if len(converted.shape) != len(shape) or any(
        isinstance(size, int) and size != length for size, length in zip(shape, converted.shape, strict=True)
    ):
        raise refused(
            f"{name} must be {kind} of shape {shape_text}, N inputs at once; got the shape {converted.shape}"
        )
    if not len(converted):
        raise refused(f"{name} must hold one input or more; got none")
    if converted.dtype.kind not in "iufb":
        raise refused(f"{name} must hold numbers of {kind}; got {converted.dtype}")
    if kind.kind == "f":
        return converted.astype(kind)
    if converted.dtype.kind == "f":
        if kind == np.uint8 and converted.min() >= 0 and 0 < converted.max() <= 1:
            raise refused(
                f"{name} must be uint8 between 0 and 255; got floats between 0 and 1. Multiply them by 255 "
                f"and round; normalisation is inside the model"
            )
        if (broken := converted[converted % 1 != 0]).size:  # NaN, too
            raise refused(f"{name} must be whole numbers of {kind}; got floats such as {broken[0]:g}")
    limits = np.iinfo(kind)
    if not limits.min <= converted.min() <= converted.max() <= limits.max:
        raise refused(
            f"{name} must lie between {limits.min} and {limits.max}; "
            f"got {converted.min():g} to {converted.max():g}"
        )
    return converted.astype(kind)


def refused(why: str) -> MlflowException:
    return MlflowException(why, error_code=INVALID_PARAMETER_VALUE)


mlflow.models.set_model(ServedModel())

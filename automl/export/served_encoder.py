"""Serve encoders of texts in `mlflow-model`. MLflow copies this file into the model, as served_model.

It converts texts to tokens with `tokenizer.json`, and reports errors in words.
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
from tokenizers import Tokenizer

BATCH = 64  # texts at once


class ServedEncoder(mlflow.pyfunc.PythonModel):
    """Model that maps texts to vectors, by one of its encoders."""

    def load_context(self, context: Any) -> None:
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # files in the home folder, at import
        import onnxruntime

        self.tokenizer = Tokenizer.from_file(context.artifacts["tokenizer"])
        self.graphs = json.loads(Path(context.artifacts["about"]).read_text())["graphs"]
        self.sessions = {
            name: onnxruntime.InferenceSession(context.artifacts[name], providers=["CPUExecutionProvider"])
            for name in self.graphs
        }

    # With type hints, MLflow would expect rows of a table, and warn.
    def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]
        """Map `{"query": [text, ...]}` or `{"code": [text, ...]}` to `{"vectors": float32 (N, D)}`.

        Raise MlflowException for invalid inputs. A server responds with status 400.
        """
        inputs_by_name = model_input if isinstance(model_input, Mapping) else {}
        if len(inputs_by_name) != 1 or not set(inputs_by_name) <= set(self.graphs):
            received = ", ".join(map(str, inputs_by_name)) if inputs_by_name else type(model_input).__name__
            raise refused(f"the input is one of {', '.join(self.graphs)}, a list of texts; got {received}")
        ((name, value),) = inputs_by_name.items()
        texts = self.checked(name, value)
        about = self.graphs[name]
        output = about["outputs"][0]["name"]
        parts = []
        for begin in range(0, len(texts), BATCH):
            tokens = self.tokens(texts[begin : begin + BATCH], about["details"])
            parts += self.sessions[name].run([output], {about["inputs"][0]["name"]: tokens})
        return {output: np.concatenate(parts)}

    def checked(self, name: str, value: Any) -> list[str]:
        """Return `value` as a list of texts. Raise MlflowException if the model knows no word of a text."""
        texts = value.tolist() if isinstance(value, np.ndarray) else value
        if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
            raise refused(f"{name} must be a list of texts, such as ['read a csv file']")
        if not texts:
            raise refused(f"{name} must hold one text or more; got none")
        unknown = self.graphs[name]["details"]["unknown"]
        for number, encoding in enumerate(self.tokenizer.encode_batch(list(texts))):
            if not set(encoding.ids) - {unknown}:
                raise refused(f"{name}[{number}]: the model knows no word of {texts[number]!r}")
        return list(texts)

    def tokens(self, texts: list[str], details: Mapping[str, Any]) -> np.ndarray:
        """Return tokens, int64 `(N, T)`, truncated to the maximum length of the encoder, and padded."""
        rows = [encoding.ids[: details["length"]] for encoding in self.tokenizer.encode_batch(texts)]
        rows_of_tokens = np.full((len(rows), max(map(len, rows))), details["padding"], np.int64)
        for to, row in zip(rows_of_tokens, rows, strict=True):
            to[: len(row)] = row
        return rows_of_tokens


def refused(why: str) -> MlflowException:
    return MlflowException(why, error_code=INVALID_PARAMETER_VALUE)


mlflow.models.set_model(ServedEncoder())

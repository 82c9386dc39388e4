"""Run an ONNX file on numpy arrays, on the CPU."""

from pathlib import Path

import numpy as np
import onnxruntime
import torch

from automl.base.errors import InputError
from automl.tasks.deployment import Arrays, Run


def open_onnx(file: Path, content: bytes | None = None) -> Run:
    """Return a function from all inputs of the model in `file` to all its outputs.

    `content` replaces that of the file. It uses as many threads as torch. It raises InputError for an empty
    batch, for which onnxruntime has no clear message.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(content or str(file), options, providers=["CPUExecutionProvider"])
    outputs = [output.name for output in session.get_outputs()]

    def run(inputs: Arrays) -> Arrays:
        for name, value in inputs.items():
            if not len(value):
                raise InputError(
                    f"{file.name} needs at least one input; got an array {name} of shape {value.shape}"
                )
        values = session.run(outputs, dict(inputs))
        return {name: np.asarray(value) for name, value in zip(outputs, values, strict=True)}

    return run

"""An ONNX file as a function of numpy arrays, on the CPU."""

from pathlib import Path

import numpy as np
import onnxruntime
import torch

from attention import InputError
from automl.tasks.deployment import Arrays, Run


def open_onnx(file: Path) -> Run:
    """The model in `file`, from all its inputs to all its outputs, with as many threads as torch has here.

    The function raises InputError for no inputs, which onnxruntime's kernels fail at, each in its own words.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    outputs = [output.name for output in session.get_outputs()]

    def run(inputs: Arrays) -> Arrays:
        for name, value in inputs.items():
            if not len(value):
                raise InputError(
                    f"{file.name} takes one input or more; got an array {name} of shape {value.shape}"
                )
        values = session.run(outputs, dict(inputs))
        return {name: np.asarray(value) for name, value in zip(outputs, values, strict=True)}

    return run

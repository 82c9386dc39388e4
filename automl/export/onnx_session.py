"""An ONNX file as a function of numpy arrays, on the CPU."""

from pathlib import Path

import numpy as np
import onnxruntime
import torch

from attention import InputError
from automl.export.score_card import Run


def open_onnx(file: Path) -> Run:
    """The model in `file`, as a function of its one input `(N, ...)`, with as many threads as torch has here.

    The function raises InputError for N = 0, which onnxruntime's kernels fail at, each in its own words.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name

    def run(inputs: np.ndarray) -> np.ndarray:
        if not len(inputs):
            raise InputError(f"{file.name} takes one input or more; got an array of shape {inputs.shape}")
        return np.asarray(session.run(None, {name: inputs})[0])

    return run

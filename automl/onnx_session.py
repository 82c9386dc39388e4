"""An ONNX file as a function of numpy arrays, on the CPU."""

from pathlib import Path

import numpy as np
import onnxruntime
import torch

from automl.score_card import Run


def open_onnx(file: Path) -> Run:
    """The model in `file`, as a function of its one input. Uses as many threads as torch does here."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda inputs: np.asarray(session.run(None, {name: inputs})[0])

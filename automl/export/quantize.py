"""Quantise an ONNX model to 8 bits, with ranges from training inputs.

Static post-training quantisation of onnxruntime: QDQ nodes, one scale for each output channel of the weights
(a single scale changed 1.1 % of the answers on digits, these 0.3 %), and uint8 activations with minimum and
maximum (percentiles or entropy made no difference). Signed activations have no fast kernels on x86: 1.7 times
the latency of the float model.

These stay in float32, measured on xresnet18 at a quarter of its width with `ssa`, and with every attention:

- normalisation and softmax: a probability of 8 bits would have steps of 1/256, and neither takes time;
- the first convolution, which has 3 input channels and no fast 8-bit kernel: with it, latency is 0.93 of the
  float model's, without it 0.77; it holds 0.1 % of the weights;
- the matrix products of attention: quantised, they gain no time, and probabilities are off by 1.4 times as
  much;
- average pooling and the 1x1 convolution behind it. Between two quantised convolutions onnxruntime (1.31.1)
  pools channels last, and then sums only part of the windows at the border of an odd side with ceil_mode: off
  by 0.7 for inputs up to 1, and 53 % right answers instead of 97 % for xresnet18 at 24 px.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from attention import InputError
from automl.tasks.deployment import Arrays, iterate_batches

CALIBRATION_INPUTS = 256  # number of training inputs for the ranges
BATCH = 32
KINDS = ("int8",)
QUANTIZED = ("Conv", "Gemm", "Add", "MaxPool", "Relu")


@dataclass(frozen=True, kw_only=True)
class Quantized:
    """Quantised model, compared with the float model on the whole test split.

    Attributes:
        kind: Type of quantisation.
        calibrated: Number of training inputs for the ranges.
        accuracy: Accuracy.
        difference: Its difference from the float model's.
        agreement: Fraction of inputs for which both give the same answer.
        size: Size of the file [bytes].
        size_ratio: Size divided by the float model's.
        latency_ratio: Latency divided by the float model's.
    """

    kind: str
    calibrated: int
    accuracy: float
    difference: float
    agreement: float
    size: int
    size_ratio: float
    latency_ratio: float

    def __str__(self) -> str:
        return (
            f"accuracy {self.accuracy:.4f} ({self.difference:+.4f}), same answer for {self.agreement:.1%}, "
            f"{self.size_ratio:.2f} of the size, {self.latency_ratio:.2f} of the latency"
        )


class _Reader(CalibrationDataReader):
    """Calibration reader that yields `inputs` in batches."""

    def __init__(self, inputs: Arrays) -> None:
        self.batches = iterate_batches(inputs, BATCH)

    def get_next(self) -> dict[str, Any] | None:
        return next(self.batches, None)


def quantize_int8(source: Path, target: Path, inputs: Arrays) -> None:
    """Quantise the ONNX model in `source` to `target`, calibrated on the raw `inputs`.

    Raise InputError for a model without convolutions beyond the first.
    """
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        # Infer shapes and fold constants. Otherwise the file is a seventh to a third larger.
        prepared = Path(folder) / "prepared.onnx"
        # Onnxruntime's symbolic shape inference fails with a variable axis beside the batch.
        varying = [
            i for i in onnx.load(source).graph.input for d in i.type.tensor_type.shape.dim[1:] if d.dim_param
        ]
        quant_pre_process(source, prepared, skip_symbolic_shape=bool(varying))
        graph = onnx.load(prepared).graph
        alone = left_alone(graph)
        if not any(node.op_type == "Conv" and node.name not in alone for node in graph.node):
            raise InputError(
                "--quantize int8 needs a convolutional network: only convolutions beyond the first get "
                "faster, and this model has none. Export it without --quantize"
            )
        quantize_static(
            prepared,
            target,
            _Reader(inputs),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            op_types_to_quantize=list(QUANTIZED),
            nodes_to_exclude=alone,
        )


def left_alone(graph: onnx.GraphProto) -> list[str]:
    """Return the names of convolutions that are not quantised: the first, and those after average pooling."""
    convolutions = [node for node in graph.node if node.op_type == "Conv"]
    pooled = {out for node in graph.node if node.op_type == "AveragePool" for out in node.output}
    return [n.name for i, n in enumerate(convolutions) if i == 0 or n.input[0] in pooled]

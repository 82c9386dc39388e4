"""Deployment of a trained model of any task: the module, its named inputs and its named outputs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from automl.base.errors import InputError

Arrays = Mapping[str, np.ndarray]  # inputs or outputs by name; the first axis of each is the batch
Run = Callable[[Arrays], Arrays]  # an exported form, from all inputs to all outputs
Kind = Literal["model", "encoder", "decoder"]

BATCH_AXIS = "N"
MODEL = "model"  # the name of the only graph of a task
SHORTEST = 8  # smallest variable axis: a model's first convolutions need a few positions
TOKENIZER = "tokenizer.json"  # the format of Hugging Face's `tokenizers`, in the `files` of text graphs


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """Module from raw inputs to answers.

    Attributes:
        module: Takes the inputs in order, and returns one tensor or a tuple of tensors, the `outputs`.
        inputs: An example of each input, a batch of two. The batch is the first axis of every input and
            output.
        outputs: The names of the outputs.
        dynamic: The variable axes beside the batch, `{input or output: {axis: name}}`. Axes with the same
            name have the same size.
        bounds: The smallest and largest size of such an axis by name. By default SHORTEST and no limit.
        kind: `model` from arrays to answers, `encoder` of texts as vectors, or `decoder` that continues
            texts. All graphs of a task have the same kind, which `mlflow-model` and `automl predict` follow.
        labels: The names for the last axis of the first output; empty if these are not labels.
        details: The properties of the data that `Task.read_inputs` needs, in JSON's types.
        files: The content of further files that are needed, by name.
    """

    module: nn.Module
    inputs: Mapping[str, Tensor]
    outputs: Sequence[str]
    dynamic: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    bounds: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)
    kind: Kind = "model"
    labels: Sequence[str] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)

    def axes(self, name: str) -> dict[int, str]:
        """Return the variable axes of an input or output, and their names."""
        return {0: BATCH_AXIS, **self.dynamic.get(name, {})}

    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
        """Return the outputs of the module as arrays."""
        with torch.inference_mode():
            outputs = self.module.eval()(*(inputs[name] for name in self.inputs))
        return self.named(outputs)

    def named(self, outputs: Any) -> dict[str, np.ndarray]:
        """Return the outputs of the module, or of a program made of it, as arrays by name."""
        values = (outputs,) if isinstance(outputs, Tensor) else outputs
        return {name: value.cpu().numpy() for name, value in zip(self.outputs, values, strict=True)}


@dataclass(frozen=True, kw_only=True)
class Signature:
    """Name, dtype and shape of a tensor. A variable axis is a name in the shape."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    def __str__(self) -> str:
        shape = ", ".join(map(str, self.shape)) + ("," if len(self.shape) == 1 else "")
        return f"`{self.name}`: {self.dtype}, shape `({shape})`"

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "dtype": self.dtype, "shape": list(self.shape)}


@dataclass(frozen=True, kw_only=True)
class Interface:
    """Inputs and outputs of a graph."""

    inputs: Sequence[Signature]
    outputs: Sequence[Signature]

    @classmethod
    def of(cls, deployment: Deployment, inputs: Arrays, outputs: Arrays) -> Self:
        """Return the interface that fits these examples."""
        return cls(inputs=make_signatures(deployment, inputs), outputs=make_signatures(deployment, outputs))

    def to_json(self) -> dict[str, Any]:
        return {
            "inputs": [signature.to_json() for signature in self.inputs],
            "outputs": [signature.to_json() for signature in self.outputs],
        }


def make_signatures(deployment: Deployment, arrays: Arrays) -> list[Signature]:
    """Return the signatures of inputs or outputs, given an example."""
    signatures = []
    for name, value in arrays.items():
        axes = deployment.axes(name)
        shape = tuple(axes.get(axis, size) for axis, size in enumerate(value.shape))
        signatures.append(Signature(name=name, dtype=str(value.dtype), shape=shape))
    return signatures


def as_arrays(tensors: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """Convert tensors to arrays."""
    return {name: value.cpu().numpy() for name, value in tensors.items()}


def count_rows(arrays: Arrays) -> int:
    """Return the number of inputs."""
    return len(next(iter(arrays.values())))


def iterate_batches(arrays: Arrays, size: int) -> Iterator[dict[str, np.ndarray]]:
    """Yield the arrays in batches of `size`. The last one may be smaller."""
    for start in range(0, count_rows(arrays), size):
        yield {name: value[start : start + size] for name, value in arrays.items()}


def spread_indices(total: int, count: int) -> Tensor:
    """Return up to `count` indices below `total`, evenly spread, int64."""
    return torch.linspace(0, total - 1, min(count, total)).round().long()


def read_arrays(path: str | Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Read the arrays `names` of an NPZ file. Raises InputError if they are missing or differ in length."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: np.asarray(file[name]) for name in names}
        sizes = {len(value) for value in arrays.values()}
    except FileNotFoundError:
        raise InputError(f"there is no file {path}") from None
    except Exception as error:  # NumPy and its zip files raise errors of many types
        raise InputError(
            f"{path} cannot be read as an NPZ file with the arrays {', '.join(names)} ({error})"
        ) from error
    if len(sizes) != 1:
        raise InputError(f"{path}: the arrays {', '.join(names)} must have as many rows as each other")
    return arrays

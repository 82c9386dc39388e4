"""What is deployed of a trained model, whatever its task: named inputs, named outputs, and what runs it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from attention import InputError

Arrays = Mapping[str, np.ndarray]  # inputs or outputs by name; the first axis of each is the batch
Run = Callable[[Arrays], Arrays]  # an exported form, from all inputs to all outputs

BATCH_AXIS = "N"
MODEL = "model"  # the graph of a task that has one
SHORTEST = 8  # an axis that may vary: a model's first convolutions want a few positions
TOKENIZER = "tokenizer.json"  # Hugging Face's `tokenizers` read it; among the `files` of graphs of texts


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """A module from raw inputs to answers.

    module: takes the inputs in their order, returns one tensor or a tuple of them, the `outputs`.
    inputs: an example of each, a batch of two. The batch is the first axis of every input and output.
    dynamic: the axes beyond the batch that may vary, `{input or output: {axis: name}}`; axes of one name
        are equally long.
    bounds: the least and the most of such an axis by its name; SHORTEST and no end where not given.
    labels: names of what the last dimension of the first output counts; none where it counts no labels.
    details: what `Task.read_inputs` needs to know of the data, in JSON's types.
    files: what else is needed to use it, the content of each by its name.
    """

    module: nn.Module
    inputs: Mapping[str, Tensor]
    outputs: Sequence[str]
    dynamic: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    bounds: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)
    labels: Sequence[str] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)

    def axes(self, name: str) -> dict[int, str]:
        """The axes of an input or output that may vary, and their names."""
        return {0: BATCH_AXIS, **self.dynamic.get(name, {})}

    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
        """What the module itself answers, as arrays."""
        with torch.inference_mode():
            found = self.module.eval()(*(inputs[name] for name in self.inputs))
        return self.named(found)

    def named(self, found: Any) -> dict[str, np.ndarray]:
        """What the module or a program made of it has returned, as arrays by name."""
        values = (found,) if isinstance(found, Tensor) else found
        return {name: value.cpu().numpy() for name, value in zip(self.outputs, values, strict=True)}


@dataclass(frozen=True, kw_only=True)
class Signature:
    """Name, dtype and shape of a tensor; in the shape an axis that may vary is a name."""

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
    """What a graph takes and answers."""

    inputs: Sequence[Signature]
    outputs: Sequence[Signature]

    @classmethod
    def of(cls, deployment: Deployment, inputs: Arrays, outputs: Arrays) -> Self:
        """As these examples have it."""
        return cls(inputs=make_signatures(deployment, inputs), outputs=make_signatures(deployment, outputs))

    def to_json(self) -> dict[str, Any]:
        return {
            "inputs": [one.to_json() for one in self.inputs],
            "outputs": [one.to_json() for one in self.outputs],
        }


def make_signatures(deployment: Deployment, arrays: Arrays) -> list[Signature]:
    """Of the inputs or outputs of which `arrays` are an example."""
    found = []
    for name, value in arrays.items():
        axes = deployment.axes(name)
        shape = tuple(axes.get(axis, size) for axis, size in enumerate(value.shape))
        found.append(Signature(name=name, dtype=str(value.dtype), shape=shape))
    return found


def as_arrays(tensors: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """The same in numpy."""
    return {name: value.cpu().numpy() for name, value in tensors.items()}


def count_rows(arrays: Arrays) -> int:
    """How many inputs there are."""
    return len(next(iter(arrays.values())))


def iterate_batches(arrays: Arrays, size: int) -> Iterator[dict[str, np.ndarray]]:
    """All of them in batches of `size`; the last may have fewer."""
    for begin in range(0, count_rows(arrays), size):
        yield {name: value[begin : begin + size] for name, value in arrays.items()}


def spread_indices(total: int, count: int) -> Tensor:
    """The numbers of up to `count` of `total` inputs, evenly spread, int64."""
    return torch.linspace(0, total - 1, min(count, total)).round().long()


def read_arrays(path: str | Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """The arrays called `names` in an NPZ file, equally many rows in each. Raises InputError."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: np.asarray(file[name]) for name in names}
        sizes = {len(value) for value in arrays.values()}
    except FileNotFoundError:
        raise InputError(f"there is no file {path}") from None
    except Exception as error:  # NumPy and its zip files raise errors of every kind
        raise InputError(
            f"{path} cannot be read as an NPZ file with the arrays {', '.join(names)} ({error})"
        ) from error
    if len(sizes) != 1:
        raise InputError(f"{path}: the arrays {', '.join(names)} must have as many rows as each other")
    return arrays

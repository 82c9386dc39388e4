"""Deployment of a trained model of any task: the module, its named inputs and its named outputs."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from automl.base.errors import InputError
from automl.task.task_data import ShownInputs, Split

Arrays = Mapping[str, np.ndarray]  # inputs or outputs by name; the first axis of each is the batch
Run = Callable[[Arrays], Arrays]  # an exported form, from all inputs to all outputs
Kind = Literal["model", "encoder", "decoder"]

BATCH_AXIS = "N"
MODEL = "model"  # the name of the only graph of a task
SHORTEST = 8  # smallest variable axis: a model's first convolutions need a few positions
TRANSFORMERS = "transformers"  # the folder of a model that transformers loads
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
        kind: `model` from arrays to answers, `encoder` of texts as vectors, which `automl predict` searches
            in code, or `decoder` that continues texts. All graphs of a task have the same kind.
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


@dataclass(frozen=True, kw_only=True)
class Interface:
    """Inputs and outputs of a graph."""

    inputs: Sequence[Signature]
    outputs: Sequence[Signature]

    @classmethod
    def of(cls, deployment: Deployment, inputs: Arrays, outputs: Arrays) -> Self:
        """Return the interface that fits these examples."""

        def sign(arrays: Arrays) -> list[Signature]:
            return [
                Signature(
                    name=name,
                    dtype=str(value.dtype),
                    shape=tuple(deployment.axes(name).get(i, size) for i, size in enumerate(value.shape)),
                )
                for name, value in arrays.items()
            ]

        return cls(inputs=sign(inputs), outputs=sign(outputs))


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


def read_usage(module: str) -> str:
    """Return the explanation of the deployed model beside a module, for `str.format`."""
    return Path(module).with_name("usage.md.template").read_text(encoding="utf-8")


class TaskDeployment:
    """The part of a `Task` about the graphs of a model, and their use without the dataset.

    A task with one graph implements `deployment` and `model_inputs`. A task with several implements
    `deployments`, `graph_inputs`, `served_inputs` and `compare_together`.
    """

    suffixes: Collection[str] = (".npz",)
    tolerance: float = 1e-4

    def deployment(self, model: nn.Module) -> Deployment:
        """Return the deployment of a model with one graph.

        Args:
            model: The trained model.

        Returns:
            The deployment.
        """
        raise InputError(f"{type(self).__name__} needs a method `deployment`, or `deployments`")

    def deployments(self, model: nn.Module) -> dict[str, Deployment]:
        """Return each deployed graph of a model by name. The files are named `NAME.onnx`.

        Args:
            model: The trained model.

        Returns:
            The deployments.
        """
        return {MODEL: self.deployment(model)}

    def rebuilding_files(self) -> Mapping[str, bytes]:
        """Return the files that rebuild the model from an export without deployments.

        Returns:
            The content of each file by its path.
        """
        return {}

    def decoding_times(self, model: nn.Module) -> Iterable[tuple[int, float, float]]:
        """Return contexts [tokens] with the time [ms] of one more token, of a model and without its modules.

        Args:
            model: The exported model.

        Returns:
            Nothing, unless the model is a decoder that keeps states, or transformers has one like it.
        """
        return ()

    def save_folders(self, folder: Path, model: nn.Module) -> tuple[dict[str, float], dict[str, str]]:
        """Write forms of a model that are folders of other libraries, and compare each with the model.

        Args:
            folder: The folder of the export.
            model: The trained model.

        Returns:
            The difference of each check by name, and the reason for each folder that is left out.
        """
        return {}, {}

    def model_inputs(self, split: Split, count: int) -> dict[str, Tensor]:
        """Return raw inputs spread over a split, as the deployed graph takes them.

        Args:
            split: The split.
            count: The largest number of inputs.

        Returns:
            The inputs by name.
        """
        raise InputError(f"{type(self).__name__} needs a method `model_inputs`, or `graph_inputs`")

    def graph_inputs(self, split: Split, count: int) -> dict[str, dict[str, Tensor]]:
        """Return `model_inputs` for each graph of `deployments`.

        Args:
            split: The split.
            count: The largest number of inputs.

        Returns:
            The inputs of each graph. A graph that is left out is checked on the example of its deployment.
        """
        return {MODEL: self.model_inputs(split, count)}

    def served_inputs(self, split: Split, count: int) -> dict[str, Any]:
        """Return the inputs of `mlflow-model` for each graph, if they differ from `graph_inputs`.

        Args:
            split: The split.
            count: The largest number of inputs.

        Returns:
            The inputs of each graph.
        """
        return {}

    def shown_inputs(self, count: int) -> ShownInputs | None:
        """Return the first inputs of the test split, spread over its classes, in a form to look at.

        Args:
            count: The largest number of inputs.

        Returns:
            The inputs. None if the task has no such form.
        """
        return None

    def labelled_inputs(self, split: Split) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        """Yield all raw inputs of a split, as a deployed model takes them, in batches with their labels.

        Args:
            split: The split.

        Yields:
            Inputs by name, and labels as indices of `Deployment.labels`, int64 `(N,)`. Nothing for a task
            without labels.
        """
        return iter(())

    def compare(self, ours: Arrays, theirs: Arrays) -> float:
        """Return the difference between the outputs of two forms of a model.

        Export rejects a difference above `tolerance`, and NaN. By default it is the largest absolute
        difference.

        Args:
            ours: Outputs of the trained model.
            theirs: Outputs of the exported form.

        Returns:
            The difference.
        """
        return max(float(np.abs(ours[name] - theirs[name]).max()) for name in ours)

    def compare_together(self, model: nn.Module, runs: Mapping[str, Run]) -> Mapping[str, float]:
        """Return differences between the model and all exported graphs used together.

        Export rejects a difference above `tolerance`, and NaN.

        Args:
            model: The trained model.
            runs: The graphs of `deployments`, as functions of arrays.

        Returns:
            The difference of each check by its name. By default there is none.
        """
        return {}

    @classmethod
    def read_inputs(
        cls, exported: Mapping[str, Any], paths: Sequence[str | Path]
    ) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
        """Read inputs from files, without the dataset.

        By default each file is an NPZ with an array per input.

        Args:
            exported: The entry of the model in `config.json`, with `labels`, `inputs`, `outputs` and
                `details`.
            paths: The files.

        Yields:
            The name of each input, and its arrays as a batch of one.

        Raises:
            InputError: A file cannot be read.
        """
        types = {entry["name"]: entry["dtype"] for entry in exported["inputs"]}
        for path in paths:
            arrays = {
                name: value.astype(types[name])
                if np.can_cast(value.dtype, types[name], "same_kind")
                else value
                for name, value in read_arrays(path, list(types)).items()
            }
            for i, batch in enumerate(iterate_batches(arrays, 1)):
                yield f"{path}[{i}]", batch

    @classmethod
    def describe(cls, exported: Mapping[str, Any], outputs: Arrays) -> tuple[str, dict[str, Any]]:
        """Describe the outputs for one input.

        Args:
            exported: The entry of the model in `config.json`.
            outputs: The outputs, without the axis of the batch.

        Returns:
            A line of text, and values for JSON.
        """
        labels = exported["labels"]
        if not labels:
            text = ", ".join(f"{name} {np.array2string(v, precision=6)}" for name, v in outputs.items())
            return text, {name: value.tolist() for name, value in outputs.items()}
        probabilities = dict(zip(labels, map(float, next(iter(outputs.values()))), strict=True))
        label = max(probabilities, key=probabilities.__getitem__)
        values = {"label": label, "probability": probabilities[label], "probabilities": probabilities}
        return f"{label} ({probabilities[label]:.1%})", values

    @classmethod
    def write(cls, exported: Mapping[str, Any], name: str, outputs: Arrays, path: Path) -> list[Path]:
        """Write the outputs for one input into files `PATH.*`.

        Args:
            exported: The entry of the model in `config.json`.
            name: The name of the input.
            outputs: The outputs, without the axis of the batch.
            path: The path without a suffix.

        Returns:
            The files.

        Raises:
            InputError: The task writes no files.
        """
        raise InputError(f"{cls.__name__} writes no files; leave out --out")

    @classmethod
    def reads(cls, file: Path) -> bool:
        """Return True if a file in a folder of inputs is an input.

        Args:
            file: The file.

        Returns:
            The result.
        """
        return file.suffix.lower() in cls.suffixes

    def usage(self) -> str:
        """Return Markdown that explains the inputs, outputs and use of the deployed model.

        By default the card lists names, types and shapes.
        """
        return ""

    def request(self) -> str:
        """Return lines of Python that make `inputs`, the content of a request, from a file."""
        return 'inputs = {name: value.tolist() for name, value in np.load("inputs.npz").items()}'

"""Inputs of an exported model, its modules and one forward pass, from which maps are drawn.

An ONNX graph has no modules, but each of its operations names the module that it came from. So the code of
the model is not needed: the features that enter a module become an output of the graph, and the module is
built anew with its exported weights.
"""

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from safetensors.torch import load_file
from torch import Tensor

from attention import AttentionMap, Gated, Layout, Spec
from attention.gated import map_of
from attention.padding import padding
from automl.base.errors import InputError
from automl.base.lazy import resolve
from automl.export.formats import open_onnx
from automl.export.predict import input_reader, list_inputs
from automl.task.deployment import MODEL, Arrays
from search.config.tasks import find_spec, resolve_name

SCOPES = "pkg.torch.onnx.name_scopes"  # the property of a node with the paths of its modules, outermost first


@dataclass(frozen=True, kw_only=True)
class Shown:
    """Input of an exported model, with its picture.

    Attributes:
        name: Its file, and its place in it.
        stem: The beginning of the names of its pictures.
        arrays: The inputs of the graph, a batch of one.
        extents: Height and width of an image, or the number of steps or tokens without padding.
    """

    name: str
    stem: str
    arrays: Arrays
    extents: tuple[int, ...]
    tokens: Sequence[str] = ()

    @property
    def values(self) -> np.ndarray:
        """Return the first input of the graph without the axis of the batch, or an image as its pixels."""
        array: np.ndarray = next(iter(self.arrays.values()))[0]
        return _pixels(array) if _is_image(array) else array

    @property
    def padded_extents(self) -> tuple[int, ...]:
        """Return the extents that a map covers, with padding."""
        return self.extents if len(self.extents) == 2 else self.values.shape[-1:]


@dataclass(frozen=True, kw_only=True)
class MapReader:
    """Reader of the inputs of an exported model whose maps are drawn.

    Attributes:
        graph: The graph with the modules.
        read: Yields inputs, given the folder of the model, its `config.json`, files, and trust in its code.
    """

    graph: str
    read: Callable[[Path, Mapping[str, Any], Sequence[str | Path], bool], Iterator[Shown]]


def find_reader(about: Mapping[str, Any]) -> MapReader:
    """Return the reader of an exported model's inputs."""
    reference = find_spec(resolve_name(about["config"]["task"])).map_reader
    return resolve(reference) if reference else MapReader(graph=MODEL, read=read_inputs)


def read_inputs(
    folder: Path, about: Mapping[str, Any], files: Sequence[str | Path], trust: bool
) -> Iterator[Shown]:
    """Yield the images and sequences of files."""
    task = input_reader(about, f"drawing maps of {folder}", trust)
    for file in [example for path in files for example in list_inputs(Path(path), task)]:
        for name, arrays in task.read_inputs(about, [file]):
            array = next(iter(arrays.values()))
            if array.dtype == np.uint8 and array.ndim == 4 and array.shape[-1] == 3:
                extents = array.shape[1:3]
            elif _is_image(array[0]):
                extents = array.shape[2:]
            elif array.dtype.kind == "f" and array.ndim == 3:
                extents = (int(arrays["lengths"][0]) if "lengths" in arrays else array.shape[2],)
            else:
                raise InputError(
                    f"maps are drawn on images, sequences and code; the model in {folder} takes "
                    f"{array.dtype} of shape {array.shape}"
                )
            yield Shown(name=name, stem=Path(name).stem, arrays=arrays, extents=extents)


def _is_image(array: np.ndarray) -> bool:
    """Return True for an image of a training function: floats `(C, H, W)`, in grey or colour."""
    return array.dtype.kind == "f" and array.ndim == 3 and array.shape[0] in (1, 3)


def _pixels(image: np.ndarray) -> np.ndarray:
    """Return the pixels `(H, W, 3)` of such an image. Its smallest value is black, its largest one white."""
    span = float(np.ptp(image)) or 1.0
    scaled = (255 * (image - image.min()) / span).astype(np.uint8)
    return np.broadcast_to(scaled, (3, *image.shape[1:])).transpose(1, 2, 0)


def check_inside(at: Sequence[int], shown: Shown) -> None:
    """Raise InputError unless `at` is a place of the input: column and row of an image, or one number."""
    sizes = shown.extents[::-1]
    form = "X,Y" if len(sizes) == 2 else "one number"
    if len(at) != len(sizes):
        raise InputError(f"--at takes {form} for {shown.name}; got {','.join(map(str, at))}")
    if not all(0 <= position < size for position, size in zip(at, sizes, strict=True)):
        ranges = " and ".join(f"from 0 to {size - 1}" for size in sizes)
        raise InputError(f"--at {','.join(map(str, at))} is outside of {shown.name}; give {form} {ranges}")


@dataclass(frozen=True, kw_only=True)
class ExportedModule:
    """Inserted module of an exported graph.

    Attributes:
        path: Its path in the graph.
        weights: Its path in the trained model, which begins the names of its weights.
        layout: Order of the dimensions of its features.
        class_tokens: Number of leading tokens that are not positions.
    """

    site: str
    spec: Spec
    path: str
    weights: str
    layout: Layout
    class_tokens: int

    def select_features(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return the features among the values that enter the module.

        The exporter takes the split of class tokens out of the module. Then both parts enter it.
        """
        maps = [tensor for tensor in tensors if tensor.is_floating_point() and tensor.ndim > 2]
        if not self.class_tokens or len(maps) == 1:
            return maps[0]
        first, *_, rest = sorted(maps, key=lambda tensor: tensor.shape[1])
        return torch.cat([first, rest], dim=1)

    def extents(self, features: Tensor) -> Sequence[int]:
        """Return the extents of features as `Gated.forward` takes them, without class tokens."""
        if self.layout == "B*C":
            return [features.shape[1] - self.class_tokens, *features.shape[2:-1]]
        return features.shape[2:]

    def build(self, features: Tensor, weights: Mapping[str, Tensor]) -> Gated:
        """Build the module with its weights, for features as `Gated.forward` takes them."""
        module = self.spec.build(features.shape[-1 if self.layout == "B*C" else 1], self.extents(features))
        module.site, module.layout, module.class_tokens = self.site, self.layout, self.class_tokens
        prefix = f"{self.weights}."
        own = {k.removeprefix(prefix): value for k, value in weights.items() if k.startswith(prefix)}
        module.load_state_dict(own)
        return module.eval()


class MapGraph:
    """Graph of an export, in an ONNX file, with the features of its modules as further outputs."""

    def __init__(self, file: Path, weights: Path, modules: Sequence[ExportedModule]) -> None:
        self.file = file
        model = onnx.load(file)
        self.sources = {module.site: _sources(model.graph, module.path) for module in modules}
        known = {value.name for value in (*model.graph.output, *model.graph.input)}
        for name in dict.fromkeys(name for names in self.sources.values() for name in names):
            if name not in known:
                model.graph.output.append(onnx.helper.make_empty_tensor_value_info(name))
        self.run = open_onnx(file, model.SerializeToString())
        self.weights, self.modules = load_file(weights), modules

    def maps(self, inputs: Arrays) -> dict[str, AttentionMap]:
        """Return the map of each site for inputs of the graph. Modules without weights have none."""
        values = {**inputs, **self.run(inputs)}
        maps = {}
        for module in self.modules:
            tensors = [torch.tensor(values[name]) for name in self.sources[module.site]]
            features = module.select_features(tensors)
            built = module.build(features, self.weights)
            extents = module.extents(features)
            hidden = (len(features), prod(extents), 1)
            masks = [~t.view(-1, *extents) for t in tensors if t.dtype == torch.bool and t.shape == hidden]
            with padding(masks[0] if masks else None):
                recorded = map_of(built, features)
            if recorded is not None:
                maps[module.site] = recorded
        return maps


def _sources(graph: onnx.GraphProto, path: str) -> list[str]:
    """Return the names of the values that enter a module, then the condition that hides its padding, if any.

    `Gated.tokens` hides padding by the first `Where`. The condition is the same value for all modules with
    one mask, as the exporter merges equal operations.
    """
    inside = [node for node in graph.node if path in _scopes(node)]
    constants = {tensor.name for tensor in graph.initializer}
    inner = {name for node in inside for name in node.output}
    used = (name for node in inside for name in node.input)
    entering = dict.fromkeys(name for name in used if name and name not in constants | inner)
    conditions = [node.input[0] for node in inside if node.op_type == "Where"][:1]
    return list(dict.fromkeys([*entering, *conditions]))


def _scopes(node: onnx.NodeProto) -> Sequence[str]:
    properties: Mapping[str, str] = {entry.key: entry.value for entry in node.metadata_props}
    paths: Sequence[str] = ast.literal_eval(properties.get(SCOPES, "[]"))
    return paths

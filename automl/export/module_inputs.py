"""The inserted modules of an exported model, and the maps of one forward pass.

An ONNX graph has no modules, but each of its operations names the module that it came from. So the code of
the model is not needed: the features that enter a module become an output of the graph, and the module is
built anew with its exported weights.
"""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import onnx
import torch
from safetensors.torch import load_file
from torch import Tensor

from attention import AttentionMap, Gated, Layout, Spec
from attention.attention_map import map_of
from attention.padding import padding
from automl.export.formats import open_onnx
from automl.tasks.deployment import Arrays

SCOPES = "pkg.torch.onnx.name_scopes"  # the property of a node with the paths of its modules, outermost first


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
        channels = features.shape[-1 if self.layout == "B*C" else 1]
        module = self.spec.build(channels, self.extents(features))
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

"""The parts of a model that are compiled: its repeated layers, each as one region, or else the whole model.

Layers of the same shape share their compiled code, within a model and between the trials of a process. Other
processes find it in the cache on disk. Evaluation runs the layers as they are.
"""

import os
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

import torch
from torch import nn

from automl.storage.cache_folder import cache_root
from backbones.torch_internals import allow_variants

VARIANTS = 64  # of one layer's code: its mixers in all trials of a process


class Regions:
    """Context in which calls of `model` run compiled.

    Args:
        model: The model.
    """

    def __init__(self, model: nn.Module) -> None:
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_root() / "inductor"))
        allow_variants(VARIANTS)
        self._layers = find_layers(model) or [model]
        self._compiled: list[Callable[..., Any]] = [
            torch.compile(layer.forward, dynamic=False) for layer in self._layers
        ]
        self._own = [vars(layer).get("forward") for layer in self._layers]

    def __enter__(self) -> None:
        for layer, compiled in zip(self._layers, self._compiled, strict=True):
            layer.forward = compiled

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for layer, own in zip(self._layers, self._own, strict=True):
            if own is None:
                del layer.forward  # The class has one.
            else:
                layer.forward = own


def find_layers(model: nn.Module) -> list[nn.Module]:
    """Return the modules of one class in a list that hold most of the model's weights. Empty if none do."""
    total = count_weights([model])
    for module in model.modules():
        layers = list(module) if isinstance(module, nn.ModuleList | nn.Sequential) else []
        is_repeated = len(layers) > 1 and len({type(each) for each in layers}) == 1
        if is_repeated and 2 * count_weights(layers) > total:
            return layers
    return []


def count_weights(modules: Iterable[nn.Module]) -> int:
    """Return the number of weights of modules."""
    return sum(p.numel() for module in modules for p in module.parameters())

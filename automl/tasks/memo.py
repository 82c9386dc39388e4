"""What is found out about a model once in a process, however many trials ask for it."""

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from backbones import Site, sites

Result = TypeVar("Result")
_RESULTS: dict[str, Any] = {}


def remember(purpose: str, given: Sequence[Any], make: Callable[[], Result]) -> Result:
    """Return what `make` returned before for this purpose and these values, which JSON can hold."""
    key = json.dumps([purpose, *given], sort_keys=True)
    if key not in _RESULTS:
        _RESULTS[key] = make()
    result: Result = _RESULTS[key]
    return result


def remember_sites(
    given: Sequence[Any], build: Callable[[], nn.Module], example: Callable[[], Any]
) -> Sequence[Site]:
    """Find the sites of a model, and leave torch's generator as it was. given: what the model depends on."""

    def find() -> Sequence[Site]:
        with torch.random.fork_rng(devices=[]):
            return sites(build(), example())

    return remember("sites", given, find)

"""Results that are computed once in a process, even if many trials need them."""

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from backbones import Site, sites

Result = TypeVar("Result")
_RESULTS: dict[str, Any] = {}


def remember(purpose: str, key_values: Sequence[Any], make: Callable[[], Result]) -> Result:
    """Return the result of `make`, computed once in a process for each `purpose` and equal `key_values`.

    The values must be representable in JSON.
    """
    key = json.dumps([purpose, *key_values], sort_keys=True)
    if key not in _RESULTS:
        _RESULTS[key] = make()
    result: Result = _RESULTS[key]
    return result


def remember_sites(
    dependencies: Sequence[Any], build: Callable[[], nn.Module], example: Callable[[], Any]
) -> Sequence[Site]:
    """Return the sites of a model, without a change of torch's generator.

    `dependencies` holds everything that the model depends on, in JSON's types.
    """

    def find() -> Sequence[Site]:
        with torch.random.fork_rng(devices=[]):
            return sites(build(), example())

    return remember("sites", dependencies, find)

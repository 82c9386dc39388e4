"""Calls of a model with an example, and feature maps in outputs."""

from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from automl.base.errors import InputError
from backbones import call
from backbones.example import batch_size, describe, feature_map, first_tensor, with_feature_map

X, Y = torch.zeros(2, 3), torch.ones(4, 5, 6)


class ReturnsArguments(nn.Module):
    """Model that returns its arguments."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return args, kwargs


@pytest.mark.parametrize(
    ("example", "args", "kwargs"),
    [
        (X, (X,), {}),
        ((X, None, 3), (X, None, 3), {}),
        ([X, Y], ([X, Y],), {}),
        (({"x": X},), ({"x": X},), {}),
        ({"x": X, "y": 3}, (), {"x": X, "y": 3}),
        (MappingProxyType({"x": X}), (), {"x": X}),
    ],
)
def test_call_passes_the_arguments(example: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    assert repr(call(ReturnsArguments(), example)) == repr((args, kwargs))


@pytest.mark.parametrize(
    ("example", "size", "described"),
    [
        (X, 2, "an input of shape (2, 3)"),
        ((None, Y, X), 4, "inputs of shapes None, (4, 5, 6), (2, 3)"),
        ({"flag": True, "x": {"y": X}}, 2, "inputs of shapes flag=True, x={'y': (2, 3)}"),
        ([Y, Y, Y], 3, "inputs of shapes [(4, 5, 6), (4, 5, 6), (4, 5, 6)]"),
        (([Y],), 1, "inputs of shapes [(4, 5, 6)]"),
        ([X, Y], 2, "inputs of shapes [(2, 3), (4, 5, 6)]"),
        ((torch.tensor(1.0), X), 2, "inputs of shapes (), (2, 3)"),
    ],
)
def test_batch_size_and_description(example: Any, size: int, described: str) -> None:
    assert batch_size(example) == size
    assert describe(example) == described


@pytest.mark.parametrize("example", [(), 3, {"x": "text"}, [], (torch.tensor(1),)])
def test_an_example_without_a_tensor_is_rejected(example: Any) -> None:
    with pytest.raises(InputError, match="an example of a model's input is a tensor, a tuple of"):
        first_tensor(example)


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (X, X),
        ((X, (Y, Y)), X),
        ([X, Y], X),
        (Pair(X, Y), X),
        ((None, X), None),
        ({"x": X}, None),
        (((X, Y), Y), None),
        ((), None),
        (None, None),
    ],
)
def test_the_feature_map_is_the_first_output(output: Any, expected: Tensor | None) -> None:
    assert feature_map(output) is expected
    if expected is not None:
        new = with_feature_map(output, Y + 1)
        assert type(new) is type(output)
        assert torch.equal(feature_map(new), Y + 1)
        if not isinstance(output, Tensor):
            assert repr(new[1:]) == repr(output[1:])

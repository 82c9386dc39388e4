"""Inference of the dimension of channels, through operations that models use."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backbones import sites

B, C = 2, 6


class LayerAndFunction(nn.Module):
    """Model of a layer, a function, and a module that returns the function's result."""

    def __init__(self, layer: nn.Module, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.function, self.identity = layer, function, nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.identity(self.function(self.layer(x))).sum()


def find_layout(
    layer: nn.Module, function: Callable[[Tensor], Tensor], *shape: int
) -> tuple[int, str] | None:
    layouts = {
        s.path: (s.channels, s.layout) for s in sites(LayerAndFunction(layer, function), torch.empty(shape))
    }
    return layouts.get("identity")


IMAGE = (B, 3, 4, 4)  # -> (B, C, 4, 4). Only the layers determine the dimensions.
TOKENS = (B, 4, 3)  # -> (B, 4, C)

FUNCTIONS: list[tuple[Callable[[Tensor], Tensor], str | None]] = [
    (lambda x: x, "first"),
    (lambda x: x.relu() * 2 + 1, "first"),
    (lambda x: x.permute(0, 2, 3, 1), "last"),
    (lambda x: torch.permute(input=x, dims=(0, 2, 3, 1)), "last"),
    (lambda x: x.movedim(1, -1).contiguous(), "last"),
    (lambda x: x.permute(0, 2, 1, 3), None),  # Neither first nor last.
    (lambda x: x.flatten(2).mT, "last"),
    (lambda x: x.flatten(2).transpose(1, 2).unflatten(1, (2, 8)), "last"),
    (lambda x: x[:, :, 1:, ::2], "first"),
    (lambda x: torch.stack([x.movedim(1, -1)] * 5, dim=1), "last"),
    (lambda x: x.chunk(2, dim=1)[0], "first"),
    (lambda x: F.interpolate(x, scale_factor=2), "first"),
    (lambda x: F.pixel_shuffle(torch.cat([x, x], 1), 2), "first"),
    (lambda x: F.layer_norm(x.permute(0, 2, 3, 1), (C,)).permute(0, 3, 1, 2), "first"),
    (lambda x: x.movedim(1, -1).reshape(B, 2, 2, 4, C).permute(0, 2, 1, 3, 4).reshape(B, 4, 4, C), "last"),
    (lambda x: x.flatten(1).view(B, 3, 32), None),  # Channels and positions are mixed.
    (lambda x: x.mean(1, keepdim=True), None),
    (lambda x: x.flatten(2).mT @ nn.Parameter(torch.empty(C, C)), "last"),
]


@pytest.mark.parametrize(("function", "expected"), FUNCTIONS, ids=range(len(FUNCTIONS)))
def test_channels_are_followed(function: Callable[[Tensor], Tensor], expected: str | None) -> None:
    layout = find_layout(nn.Conv2d(3, C, 1), function, *IMAGE)
    assert (layout and layout[1]) == {"first": "BC*", "last": "B*C", None: None}[expected]
    y = function(torch.empty(B, C, 4, 4))
    if layout is not None:
        assert layout[0] == y.shape[1 if expected == "first" else -1]


@pytest.mark.parametrize(
    ("layer", "shape", "expected"),
    [
        (nn.Conv1d(3, C, 1), (B, 3, 4), (C, "BC*")),
        (nn.ConvTranspose2d(3, C, 2), IMAGE, (C, "BC*")),
        (nn.BatchNorm1d(4), TOKENS, (4, "BC*")),
        (nn.Linear(3, C), TOKENS, (C, "B*C")),
        (nn.Linear(4, C), IMAGE, (C, "B*C")),
        (nn.LayerNorm(3), TOKENS, (3, "B*C")),
        (nn.LayerNorm([3, 4, 4]), IMAGE, None),  # Over all dimensions, so it determines nothing.
        (nn.Identity(), TOKENS, None),
    ],
    ids=str,
)
def test_layers_determine_the_dimension(
    layer: nn.Module, shape: tuple[int, ...], expected: tuple[int, str] | None
) -> None:
    assert find_layout(layer, lambda x: x, *shape) == expected


class UntracedFunction(torch.autograd.Function):
    """Custom function, which torch's function mode does not trace."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.relu()


class Activation(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return UntracedFunction.apply(x)


@pytest.mark.parametrize(
    ("layers", "layout"),
    [((nn.Conv1d(3, 3, 1), Activation()), "BC*"), ((nn.Linear(3, 3), Activation()), "B*C")],
    ids=["conv", "linear"],
)
def test_channels_are_carried_through_a_custom_function(layers: tuple[nn.Module, ...], layout: str) -> None:
    known = sites(nn.Sequential(*layers), torch.empty(2, 3, 3))
    assert [(s.path, s.layout) for s in known] == [("1", layout)]


@pytest.mark.parametrize(
    ("reader", "layout"), [(nn.Conv1d(4, 5, 1), "BC*"), (nn.Linear(3, 5), "B*C")], ids=["conv", "linear"]
)
def test_unknown_dimension_is_inferred_from_the_next_layer(reader: nn.Module, layout: str) -> None:
    layouts = {s.path: s.layout for s in sites(nn.Sequential(nn.Identity(), reader), torch.empty(TOKENS))}
    assert layouts["0"] == layout

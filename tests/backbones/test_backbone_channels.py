"""Where channels are, through what models do to tensors."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backbones import sites

B, C = 2, 6


class One(nn.Module):
    """A convolution or a linear layer, a function, and a module that returns what the function did."""

    def __init__(self, layer: nn.Module, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.function, self.here = layer, function, nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.here(self.function(self.layer(x)))


def _found(layer: nn.Module, function: Callable[[Tensor], Tensor], *shape: int) -> tuple[int, str] | None:
    found = {s.path: (s.channels, s.layout) for s in sites(One(layer, function), torch.empty(shape))}
    return found.get("here")


IMAGE = (B, 3, 4, 4)  # -> (B, C, 4, 4): only the layers tell what is what
TOKENS = (B, 4, 3)  # -> (B, 4, C)

FUNCTIONS: list[tuple[Callable[[Tensor], Tensor], str | None]] = [
    (lambda x: x, "first"),
    (lambda x: x.relu() * 2 + 1, "first"),
    (lambda x: x.permute(0, 2, 3, 1), "last"),
    (lambda x: torch.permute(input=x, dims=(0, 2, 3, 1)), "last"),
    (lambda x: x.movedim(1, -1).contiguous(), "last"),
    (lambda x: x.permute(0, 2, 1, 3), None),  # neither first nor last
    (lambda x: x.flatten(2), "first"),
    (lambda x: x.flatten(2).mT, "last"),
    (lambda x: x.flatten(2).transpose(1, 2).unflatten(1, (2, 8)), "last"),
    (lambda x: x.unsqueeze(2), "first"),
    (lambda x: x[:, :, 1:, ::2], "first"),
    (lambda x: torch.cat([x, x], dim=1), "first"),
    (lambda x: torch.stack([x, x], dim=2), "first"),
    (lambda x: torch.stack([x.movedim(1, -1)] * 5, dim=1), "last"),
    (lambda x: x.chunk(2, dim=1)[0], "first"),
    (lambda x: F.pad(x, (1, 1)), "first"),
    (lambda x: F.max_pool2d(x, 2), "first"),
    (lambda x: F.interpolate(x, scale_factor=2), "first"),
    (lambda x: F.pixel_shuffle(torch.cat([x, x], 1), 2), "first"),
    (lambda x: F.layer_norm(x.permute(0, 2, 3, 1), (C,)).permute(0, 3, 1, 2), "first"),
    (lambda x: x.movedim(1, -1).reshape(B, 2, 2, 4, C).permute(0, 2, 1, 3, 4).reshape(B, 4, 4, C), "last"),
    (lambda x: x.flatten(1).view(B, 3, 32), None),  # channels and positions mixed
    (lambda x: x.mean(1, keepdim=True), None),
    (lambda x: x.flatten(2).mT @ nn.Parameter(torch.empty(C, C)), "last"),
]


@pytest.mark.parametrize(("function", "expected"), FUNCTIONS, ids=range(len(FUNCTIONS)))
def test_channels_are_followed(function: Callable[[Tensor], Tensor], expected: str | None) -> None:
    found = _found(nn.Conv2d(3, C, 1), function, *IMAGE)
    assert (found and found[1]) == {"first": "BC*", "last": "B*C", None: None}[expected]
    y = function(torch.empty(B, C, 4, 4))
    if found is not None:
        assert found[0] == y.shape[1 if expected == "first" else -1]


@pytest.mark.parametrize(
    ("layer", "shape", "expected"),
    [
        (nn.Conv1d(3, C, 1), (B, 3, 4), (C, "BC*")),
        (nn.Conv3d(3, C, 1), (B, 3, 4, 4, 4), (C, "BC*")),
        (nn.ConvTranspose2d(3, C, 2), IMAGE, (C, "BC*")),
        (nn.BatchNorm1d(4), TOKENS, (4, "BC*")),
        (nn.GroupNorm(2, 4), TOKENS, (4, "BC*")),
        (nn.Linear(3, C), TOKENS, (C, "B*C")),
        (nn.Linear(4, C), IMAGE, (C, "B*C")),
        (nn.LayerNorm(3), TOKENS, (3, "B*C")),
        (nn.LayerNorm([3, 4, 4]), IMAGE, None),  # over all of it: tells nothing
        (nn.Identity(), TOKENS, None),
    ],
    ids=str,
)
def test_layers_tell(layer: nn.Module, shape: tuple[int, ...], expected: tuple[int, str] | None) -> None:
    assert _found(layer, lambda x: x, *shape) == expected


class Unseen(torch.autograd.Function):
    """Custom functions do not pass torch's function mode."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.relu()


class Activation(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Unseen.apply(x)


@pytest.mark.parametrize(
    ("layers", "layout"),
    [((nn.Conv1d(3, 3, 1), Activation()), "BC*"), ((nn.Linear(3, 3), Activation()), "B*C")],
    ids=["conv", "linear"],
)
def test_a_module_with_a_custom_function(layers: tuple[nn.Module, ...], layout: str) -> None:
    assert [s.layout for s in sites(nn.Sequential(*layers), torch.empty(2, 3, 3))] == [layout] * 2


@pytest.mark.parametrize(
    ("reader", "layout"), [(nn.Conv1d(4, 5, 1), "BC*"), (nn.Linear(3, 5), "B*C")], ids=["conv", "linear"]
)
def test_what_is_unknown_is_told_by_the_layer_that_reads_it(reader: nn.Module, layout: str) -> None:
    found = {s.path: s.layout for s in sites(nn.Sequential(nn.Identity(), reader), torch.empty(TOKENS))}
    assert found["0"] == layout

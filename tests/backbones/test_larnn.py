"""LARNN against a restatement of its paper, in float64, and what it promises beside."""

import itertools

import pytest
import torch
from larnn_restated import Restated
from torch import Tensor, nn

from backbones.larnn import Layer

CASES = [
    dict(zip(("mode", "positional", "activation_on_keys_and_values", "cell_activation"), case, strict=True))
    for case in itertools.product(("residual", "layer"), (False, True), (False, True), ("elu", "tanh"))
]
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))


def layer(channels: int = 5, hidden: int = 6, **options: object) -> Layer:
    torch.manual_seed(0)
    made = Layer(
        channels,
        hidden,
        **{
            "heads": 3,
            "window": 4,
            "mode": "residual",
            "positional": False,
            "activation_on_keys_and_values": False,
            "cell_activation": "elu",
            "dropout": 0.0,
            **options,
        },
    ).double()
    if made.norm is not None:
        nn.init.uniform_(made.norm.weight, 0.5, 1.5)
        nn.init.normal_(made.norm.bias)
        made.norm.running_mean.normal_()
        made.norm.running_var.uniform_(0.5, 1.5)
    return made


def values(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def results(model: nn.Module, weights: nn.Module, x: Tensor) -> list[Tensor]:
    """States, and the gradients of the input and of each weight."""
    x = x.clone().requires_grad_()
    y = model(x)
    loss = (y * values(*y.shape)).sum()
    return [y, *torch.autograd.grad(loss, [x, *weights.parameters()])]


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@every_case
def test_equals_the_restatement(case: dict[str, object], training: bool) -> None:
    ours = layer(**case).train(training)
    x = values(7, 5, 11)  # longer than the window
    theirs = results(Restated(ours, positional=bool(case["positional"])), ours, x)
    names = ["states", "input", *dict(ours.named_parameters())]
    for name, a, b in zip(names, results(ours, ours, x), theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10, msg=lambda said, name=name: f"{name}: {said}")

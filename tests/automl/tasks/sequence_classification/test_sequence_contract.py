"""Properties of every sequence model, for every record of the table."""

import pytest
import torch
from torch import Tensor

from automl.base.errors import InputError
from backbones import build
from tests.helpers.backbone_contract import (
    CHANNELS,
    CLASSES,
    LENGTH,
    every_name,
    lengths,
    new,
    sequences,
)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@every_name
def test_sequences_of_any_length_are_accepted(name: str, training: bool) -> None:
    model = new(name).train(training)
    for length in (1, 2, LENGTH):
        assert model(sequences(length=length)).shape == (4, CLASSES)


@every_name
def test_defaults_build_a_model(name: str) -> None:
    assert build(name, classes=2, in_channels=9).eval()(torch.zeros(1, 9, 4)).shape == (1, 2)


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@every_name
def test_every_parameter_has_a_gradient(name: str, masked: bool) -> None:
    model = new(name).double()
    logits = model(sequences(dtype=torch.float64), lengths(16, 9, 5, 1) if masked else None)
    (logits * logits.detach().cos()).sum().backward()
    for parameter, value in model.named_parameters():
        assert value.grad is not None, parameter
        assert 1e-9 < value.grad.norm() < float("inf"), parameter


@pytest.mark.parametrize("times", [1.0, 1.5, 2.0, 3.0])
@every_name
def test_padding_changes_nothing(name: str, times: float) -> None:
    """Neither its length nor its content matters, even NaN."""
    model, x = new(name).eval(), sequences(length=11)
    longest = int(11 * times)
    padded = torch.full((4, CHANNELS, longest), float("nan"))
    padded[:, :, :11] = x
    logits = model(padded, lengths(11, 11, 11, 11, longest=longest))
    torch.testing.assert_close(logits, model(x), rtol=1e-5, atol=1e-5)


@every_name
def test_sequences_of_different_lengths_do_not_mix(name: str) -> None:
    model, x, real = new(name).eval(), sequences(), (16, 9, 5, 1)
    single = torch.cat([model(x[i : i + 1, :, :n]) for i, n in enumerate(real)])
    torch.testing.assert_close(model(x, lengths(*real)), single, rtol=1e-5, atol=1e-5)


@every_name
def test_padding_does_not_affect_training(name: str) -> None:
    """It affects neither the gradients nor the statistics of the norms."""
    x, real = sequences(dtype=torch.float64), (12, 9, 5, 1)
    outcomes = []
    for end in (12, 16):
        model = new(name).double()
        cut = x[:, :, :end].clone()
        cut.masked_fill_(~lengths(*real, longest=end).unsqueeze(1), float(end))
        model(cut, lengths(*real, longest=end)).square().sum().backward()
        outcomes.append([*(p.grad for p in model.parameters()), *model.buffers()])
    for a, b in zip(*outcomes, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    ("x", "mask", "message"),
    [
        (torch.zeros(2, CHANNELS + 1, 8), None, r"takes \(B, 3, T\); got \(2, 4, 8\)"),
        (torch.zeros(2, CHANNELS), None, r"takes \(B, 3, T\); got \(2, 3\)"),
        (
            torch.zeros(2, CHANNELS, 8),
            torch.ones(2, 7, dtype=torch.bool),
            r"bool \(B, T\) = \(2, 8\).*\(2, 7\)",
        ),
        (torch.zeros(2, CHANNELS, 8), torch.ones(2, 8), r"got float32 \(2, 8\)"),
    ],
)
@every_name
def test_other_shapes_are_rejected(name: str, x: Tensor, mask: Tensor | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        new(name)(x, mask)

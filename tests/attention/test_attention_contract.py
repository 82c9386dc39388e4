"""Properties of every attention module, for every record of the table."""

import os

import pytest
import torch
from torch import Tensor

from attention import Spec
from tests.helpers import others_slow
from tests.helpers.attention_cases import (
    CHANNELS,
    every_spec,
    features,
    inputs,
    new,
    with_encoding,
    without_encoding,
)

SHAPES = [(2, CHANNELS, 30), (2, CHANNELS, 6, 5), (2, CHANNELS, 2, 3, 5)]


def _channels_last(x: Tensor) -> Tensor:
    """Return `x` with the channels innermost. PyTorch names this format only for two and three dimensions."""
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


LAYOUTS = {"contiguous": Tensor.contiguous, "channels_last": _channels_last}


@pytest.fixture(params=SHAPES, ids=["1d", "2d", "3d"])
def shape(request: pytest.FixtureRequest) -> tuple[int, ...]:
    return request.param


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@every_spec
def test_is_identity_when_new(spec: Spec, shape: tuple[int, ...], layout: str, training: bool) -> None:
    x = LAYOUTS[layout](inputs(spec, *shape))
    assert spec.build(CHANNELS).gamma == 0
    assert torch.equal(new(spec).train(training)(x), x)


@pytest.mark.parametrize("layout", LAYOUTS)
@every_spec
def test_keeps_shape_dtype_and_layout(spec: Spec, shape: tuple[int, ...], layout: str) -> None:
    x = LAYOUTS[layout](inputs(spec, *shape))
    y = new(spec, gate=1)(x)
    assert (y.shape, y.dtype, y.stride()) == (x.shape, x.dtype, x.stride())


@every_spec
def test_channels_may_come_last(spec: Spec, shape: tuple[int, ...]) -> None:
    """In memory, or as (B, N, C) and (B, H, W, C) in place of (B, C, N) and (B, C, H, W)."""
    module, x = new(spec, gate=1).double().eval(), inputs(spec, *shape, dtype=torch.float64)
    first, last = module(x), x.movedim(1, -1).contiguous()
    torch.testing.assert_close(module(_channels_last(x)), first, rtol=1e-10, atol=1e-10)
    module.layout = "B*C"
    y = module(last)
    torch.testing.assert_close(y, first.movedim(1, -1), rtol=1e-10, atol=1e-10)
    assert (y.shape, y.stride()) == (last.shape, last.stride())
    assert torch.equal(new(spec)(x), x)


@without_encoding
def test_spatial_arrangement_does_not_matter_without_encoding(spec: Spec) -> None:
    """A module receives a sequence of positions: (6, 5) and (30,) are the same input."""
    module, x = new(spec, gate=1).double().eval(), inputs(spec, 2, CHANNELS, 6, 5, dtype=torch.float64)
    torch.testing.assert_close(module(x).flatten(2), module(x.flatten(2)), rtol=1e-10, atol=1e-10)


@with_encoding
def test_encoding_makes_the_arrangement_matter(spec: Spec) -> None:
    module, x = new(spec, gate=1).double().eval(), features(2, CHANNELS, 6, 5, dtype=torch.float64)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name.startswith("bias"):  # It is zero when new.
                parameter.copy_(features(*parameter.shape))
    assert not torch.allclose(module(x).flatten(2), module(x.flatten(2)), atol=1e-3)
    assert not torch.allclose(module(x.flip(3)).flip(3), module(x), atol=1e-3)


@every_spec
def test_an_open_gate_changes_the_output_and_trains_every_parameter(spec: Spec) -> None:
    module, x = new(spec, gate=1).double(), inputs(spec, 2, CHANNELS, 6, 5, dtype=torch.float64)
    y = module(x)
    assert not torch.allclose(y, x)
    (y * features(*y.shape, dtype=torch.float64).cos()).sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        size = parameter.grad.norm()
        if _has_no_effect(spec, name):
            assert size < 1e-10, f"{name} has an effect"
        else:
            assert 1e-6 < size < float("inf"), name


def _has_no_effect(spec: Spec, parameter: str) -> bool:
    """Return whether a parameter has no effect.

    A bias of the keys adds the same to every position, which a softmax over positions ignores.
    """
    softmax = spec.options.get("normalisation", "softmax") == "softmax"
    return spec.type == "decomposed" and softmax and parameter == "key.bias"


@every_spec
def test_gradients_match_finite_differences(spec: Spec) -> None:
    module = new(spec, 8, gate=0.7).double().eval()  # In training mode, each pass updates the spectral norms.
    x = inputs(spec, 2, 8, 3, 2, dtype=torch.float64).requires_grad_()
    names = list(dict(module.named_parameters()))

    def run(x: Tensor, *values: Tensor) -> Tensor:
        return torch.func.functional_call(module, dict(zip(names, values, strict=True)), (x,))

    fast = not os.environ.get("AUTOML_LONG")  # compares random projections of the Jacobians
    assert torch.autograd.gradcheck(run, (x, *module.parameters()), fast_mode=fast)


FLOAT16 = [(torch.float16, 0, "float32"), (torch.float16, 1, "float32"), (torch.float16, 0, "half")]
BFLOAT16 = (torch.bfloat16, 1, "float32")  # It has the range of float32.


@pytest.mark.parametrize(
    ("half", "gate", "dtype"), others_slow([*FLOAT16, BFLOAT16], *FLOAT16[1:], rows=True), ids=str
)
@every_spec
def test_stays_finite_under_autocast(
    spec: Spec, half: torch.dtype, gate: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1024 positions of scale 20: sums of squares reach 4e5, six times the maximum of float16."""
    monkeypatch.setattr("attention.sagan.FUSED_FROM", 1024)
    module = new(spec, 64, gate=gate)
    x = inputs(
        spec, 1, 64, 32, 32, scale=20, dtype=half if dtype == "half" else torch.float32
    ).requires_grad_()
    with torch.autocast("cpu", dtype=half):
        y = module(x)
    # A loss scaler would choose the scale. Without one, sagan's true gradient of the sum is 2e5.
    (y.float().sum() / 100).backward()
    assert y.dtype == x.dtype
    assert y.isfinite().all()
    assert x.grad.isfinite().all()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    assert module.gamma.grad is not None
    assert module.gamma.grad != 0


@pytest.mark.parametrize("gate", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
@every_spec
def test_moves_to_a_dtype(spec: Spec, dtype: torch.dtype, gate: int) -> None:
    exact, module = new(spec, gate=gate).double().eval(), new(spec, gate=gate).to(dtype).eval()
    x = inputs(spec, 2, CHANNELS, 6, 5, dtype=dtype)
    y = module(x)
    assert y.dtype == dtype
    if gate:
        # Updates are compared by their norm, since single elements are imprecise in a low precision.
        error, update = (y.double() - exact(x.double())).norm(), (exact(x.double()) - x.double()).norm()
        assert error < 20 * torch.finfo(dtype).eps * update
    else:
        assert torch.equal(y, x)

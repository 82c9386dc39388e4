"""Every attention module on a GPU in float32 compared with the CPU in float64."""

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from attention import Spec
from tests.helpers.attention_cases import CAUSAL, SPECS, inputs, new

pytestmark = pytest.mark.gpu

OF_TIMM = [Spec("timm:eca"), Spec("timm:cbam")]
NON_CAUSAL = [spec for spec in SPECS if not spec.options.get("causal")]
CHANNELS = 32
PREFIX = 60  # tokens before the first one that differs


@pytest.fixture(autouse=True)
def precise() -> Iterator[None]:
    """Compute products of matrices and convolutions in float32."""
    backends = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [backend.allow_tf32 for backend in backends]
    for backend in backends:
        backend.allow_tf32 = False
    yield
    for backend, allowed in zip(backends, before, strict=True):
        backend.allow_tf32 = allowed


def build(spec: Spec) -> nn.Module:
    """Return a module in evaluation mode, whose parts all have an effect."""
    module = new(spec, CHANNELS, gate=0.7)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name != "gamma":
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return module.eval()


def run(module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the output, and the gradient of the input."""
    x = x.clone().requires_grad_()
    output = module(x)
    (output * torch.linspace(-1, 1, output.numel()).view_as(output).to(output)).sum().backward()
    return output.detach().double().cpu(), x.grad.double().cpu()


def distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("spec", [*NON_CAUSAL, *CAUSAL, *OF_TIMM], ids=str)
def test_a_gpu_computes_the_same(spec: Spec, gpu: torch.device) -> None:
    module = build(spec)
    if spec.options.get("causal"):
        module.layout = "B*C"  # type: ignore[assignment]
        x = inputs(spec, 2, CHANNELS, 96).transpose(1, 2).contiguous()
    else:
        x = inputs(spec, 2, CHANNELS, 12, 12)
    expected, expected_gradient = run(copy.deepcopy(module).double(), x.double())
    module, x = module.to(gpu), x.to(gpu)
    output, gradient = run(module, x)
    assert distance(output, expected) < 1e-5
    assert distance(gradient, expected_gradient) < 1e-4
    with torch.autocast(gpu.type, torch.bfloat16), torch.no_grad():
        assert distance(module(x).double().cpu(), expected) < 3e-2
    if spec.options.get("causal"):
        later = x.clone()
        later[:, PREFIX:] = later[:, PREFIX:].flip(1)
        with torch.no_grad():
            assert torch.equal(module(x)[:, :PREFIX], module(later)[:, :PREFIX])

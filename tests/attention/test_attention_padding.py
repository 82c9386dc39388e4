"""Padding for every attention type: padded positions behave as if they were absent."""

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from attention import ATTENTIONS, Layout, Spec
from attention.padding import current_mask, padding
from tests.helpers import others_slow
from tests.helpers.attention_cases import CHANNELS, every_spec, features, new, on_images, without_encoding

N = 10  # real positions, below the number of channels

# Numbers of padded positions before each of the N real positions and after the last.
PADS = {
    "none": [0] * (N + 1),
    "at the end": [0] * N + [3],
    "thrice the length at the end": [0] * N + [3 * N],
    "at the start": [7] + [0] * N,
    "in between": [0, 2, 0, 0, 5, 1, 0, 0, 3, 0, 4],
}
pads = pytest.mark.parametrize("case", PADS)


def _mask(case: str) -> Tensor:
    """Return the mask of a case, bool `(positions,)`."""
    return torch.tensor([real for count in PADS[case] for real in [False] * count + [True]][:-1])


def _padded(x: Tensor, mask: Tensor, value: float) -> Tensor:
    """Return `x`, (B, C, N), at the positions of `mask`, with noise of size `value` elsewhere."""
    padded = features(*x.shape[:2], len(mask), dtype=x.dtype, scale=value)
    padded[:, :, mask] = x
    return padded


@pytest.mark.parametrize("value", [0, 1, 1e30])
@pads
@without_encoding
def test_real_positions_attend_only_to_real_ones(spec: Spec, case: str, value: float) -> None:
    module = new(spec, gate=0.7).double().eval()
    x, mask = features(2, CHANNELS, N, dtype=torch.float64), _mask(case)
    padded = _padded(x, mask, value)
    with padding(mask.expand(2, -1)):
        y = module(padded)
    torch.testing.assert_close(y[:, :, mask], module(x), rtol=1e-11, atol=1e-11)
    assert torch.equal(y[:, :, ~mask], padded[:, :, ~mask])
    if value == 1e30:
        module, x = module.float(), x.float()
        with padding(mask.expand(2, -1)):
            y = module(_padded(x, mask, value))
        assert (y[:, :, mask] - module(x)).norm() <= 1e-6 * module(x).norm()


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@without_encoding
def test_infinity_at_padding_does_not_leak(spec: Spec, value: float) -> None:
    module, x, mask = new(spec, gate=0.7).double().eval(), features(2, CHANNELS, N), _mask("in between")
    padded = _padded(x.double(), mask, 1)
    padded[:, :, ~mask] = value
    with padding(mask.expand(2, -1)):
        y = module(padded)
    torch.testing.assert_close(y[:, :, mask], module(x.double()), rtol=1e-11, atol=1e-11)


@every_spec
def test_rows_of_a_batch_differ_in_length(spec: Spec) -> None:
    """One row is only padding."""
    module = new(spec, gate=0.7).double().eval()
    x = features(4, CHANNELS, 30, dtype=torch.float64)
    lengths = [30, 12, 1, 0]
    mask = torch.arange(30) < torch.tensor(lengths)[:, None]
    with padding(mask):
        y = module(x)
    for row, length in enumerate(lengths):
        if length:
            alone = module(x[row : row + 1, :, :length])
            torch.testing.assert_close(y[row : row + 1, :, :length], alone, rtol=1e-11, atol=1e-11)
        assert torch.equal(y[row, :, length:], x[row, :, length:])


@pytest.mark.parametrize("layout", ["BC*", "B*C"])
@on_images
def test_a_mask_has_the_features_dimensions(spec: Spec, layout: Layout) -> None:
    """The right columns and lower rows of an image are padding, so padding is spread out when flattened."""
    module, x = new(spec, gate=0.7).double().eval(), features(2, CHANNELS, 6, 9, dtype=torch.float64)
    mask = torch.zeros(2, 6, 9, dtype=torch.bool)
    mask[:, :4, :7] = True
    alone = module(x[:, :, :4, :7])
    module.layout = layout
    channels_last = layout == "B*C"
    with padding(mask):
        y = module(x.movedim(1, -1) if channels_last else x)
    y = y.movedim(-1, 1) if channels_last else y
    torch.testing.assert_close(y[:, :, :4, :7], alone, rtol=1e-11, atol=1e-11)
    outside = ~mask[:, None].expand_as(x)
    assert torch.equal(y[outside], x[outside])


@without_encoding
def test_gradients_equal_those_without_padding(spec: Spec) -> None:
    module, mask = (
        new(spec, gate=0.7).double().eval(),
        torch.stack([_mask("in between"), _mask("in between") & False]),
    )
    real = mask[0]
    x = features(1, CHANNELS, N, dtype=torch.float64).requires_grad_()
    module(x).square().sum().backward()
    expected = {name: p.grad.clone() for name, p in module.named_parameters()}
    module.zero_grad()
    padded = _padded(x.detach().expand(2, -1, -1), real, 1e30).requires_grad_()
    with padding(mask):
        y = module(padded)
    y[:1, :, real].square().sum().backward()
    torch.testing.assert_close(padded.grad[:1, :, real], x.grad, rtol=1e-9, atol=1e-9)
    assert not padded.grad[:1, :, ~real].any()
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("half", others_slow([torch.bfloat16, torch.float16], torch.float16), ids=str)
@every_spec
def test_stays_finite_under_autocast(spec: Spec, half: torch.dtype) -> None:
    module, x = new(spec, 64, gate=1), features(3, 64, 1024, scale=10).requires_grad_()
    mask = torch.arange(1024) < torch.tensor([1024, 5, 0])[:, None]
    with torch.autocast("cpu", dtype=half), padding(mask):
        y = module(x)
    (y.sum() / 100).backward()
    assert y.isfinite().all()
    assert x.grad.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())


EXPORTED = [
    *(Spec(name) for name in ATTENTIONS),
    Spec("ssa", {"ks": 3}),
    Spec("decomposed", {"normalisation": "scaling"}),
    *(Spec(name, {"causal": True}) for name, record in ATTENTIONS.items() if "causal" in record.options),
    Spec("decomposed", {"normalisation": "scaling", "causal": True}),
]


FEW = [Spec("sagan"), Spec("sliding"), Spec("linear", {"causal": True})]


class Masked(nn.Module):
    """Model of several attention types with a padding mask."""

    def __init__(self, specs: list[Spec]) -> None:
        super().__init__()
        self.specs, self.attentions = specs, nn.ModuleList(new(spec, gate=0.7) for spec in specs)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        with padding(mask):
            return torch.stack([attention(x) for attention in self.attentions])


INPUTS = features(2, CHANNELS, N), torch.arange(N) < torch.tensor([[4], [N]])
OTHER_INPUTS = [(features(3, CHANNELS, n), torch.arange(n) < torch.tensor([[n], [5], [0]])) for n in (7, 40)]
_BATCH, _LENGTH = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("length", min=1, max=4096)
DYNAMIC = ({0: _BATCH, 2: _LENGTH}, {0: _BATCH, 1: _LENGTH})


def _close(exported: Tensor, model: Masked, x: Tensor, mask: Tensor) -> None:
    for spec, output, target in zip(model.specs, exported, model(x, mask), strict=True):
        torch.testing.assert_close(
            output, target, rtol=1e-4, atol=1e-4, msg=lambda m, spec=spec: f"{spec}: {m}"
        )


@pytest.fixture(scope="module", params=others_slow([FEW, EXPORTED], FEW), ids=len)
def exported(request: pytest.FixtureRequest) -> tuple[Masked, ExportedProgram]:
    model = Masked(request.param).eval()
    with torch.no_grad():
        return model, torch.export.export(model, INPUTS, dynamic_shapes=DYNAMIC)


@torch.no_grad()
def test_exports_with_the_mask_as_an_input(exported: tuple[Masked, ExportedProgram]) -> None:
    model, program = exported
    for x, mask in OTHER_INPUTS:
        _close(program.module()(x, mask), model, x, mask)


@pytest.mark.parametrize("spec", [Spec("ssa", {"ks": 3}), Spec("multihead")], ids=str)
@torch.no_grad()
def test_compiles_as_one_graph_for_any_mask(spec: Spec) -> None:
    module = new(spec, gate=0.7).eval()
    compiled, (x, mask) = torch.compile(module, backend="eager", fullgraph=True), INPUTS
    for current in (None, mask, ~mask, None):
        with padding(current):
            assert torch.equal(compiled(x), module(x))


def test_padding_ends_with_its_block() -> None:
    outer, inner = torch.ones(2, N, dtype=torch.bool), torch.zeros(2, N, dtype=torch.bool)
    with padding(outer):
        with padding(inner):
            assert not current_mask(2, (N,)).any()
        with padding(None):
            assert current_mask(2, (N,)) is None
        with pytest.raises(KeyError), padding(inner):
            raise KeyError
        assert current_mask(2, (N,)).all()
    assert current_mask(2, (N,)) is None

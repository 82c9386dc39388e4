"""Decoding: prefill and steps compute the outputs of the whole sequence, and keep what the formula counts."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from attention import ATTENTIONS, Spec
from attention.decoding import State, TokenMixer
from automl.base.errors import InputError
from backbones.torch_internals import tree_leaves
from tests.helpers.attention_cases import CHANNELS, every_causal, features, new

N, PREFIX = 40, 35  # Both in the second chunk of the causal sums, and beyond the default window.


def _module(spec: Spec, *, replaces: bool = False) -> TokenMixer:
    module = new(spec, gate=0.7).eval()
    module.layout, module.replaces = "B*C", replaces
    for name, parameter in module.named_parameters():
        if name.startswith("bias") or name.endswith(".bias"):  # Most are zero when new.
            nn.init.normal_(parameter, std=0.5)
    assert isinstance(module, TokenMixer)
    return module


def _decode(module: TokenMixer, x: Tensor, state: State, start: int) -> tuple[Tensor, State]:
    outputs = []
    for position in range(start, x.shape[1]):
        y, state = module.step(x[:, position : position + 1], state, torch.tensor(position))
        outputs.append(y)
    return torch.cat(outputs, dim=1), state


@pytest.mark.parametrize("replaces", [False, True], ids=["adds", "replaces"])
@every_causal
@torch.no_grad()
def test_prefill_and_steps_equal_the_whole_sequence(spec: Spec, replaces: bool) -> None:
    module, x = _module(spec, replaces=replaces), features(2, N, CHANNELS)
    whole = module(x)
    first, state = module.prefill(x[:, :PREFIX])
    rest, last = _decode(module, x, state, PREFIX)
    torch.testing.assert_close(torch.cat([first, rest], dim=1), whole, rtol=1e-5, atol=1e-5)
    first, state = module.prefill(x[:, :1])
    steps, final = _decode(module, x, state, 1)
    torch.testing.assert_close(torch.cat([first, steps], dim=1), whole, rtol=1e-5, atol=1e-5)
    for states in zip(last, final, module.prefill(x)[1], strict=True):
        torch.testing.assert_close(states[0], states[1], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(states[0], states[2], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@every_causal
@torch.no_grad()
def test_decodes_in_half_precision(spec: Spec, dtype: torch.dtype) -> None:
    module, x = _module(spec).to(dtype), features(2, N, CHANNELS, dtype=dtype)
    first, state = module.prefill(x[:, :PREFIX])
    rest, _ = _decode(module, x, state, PREFIX)
    assert first.dtype == rest.dtype == dtype
    error = torch.cat([first, rest], dim=1).double() - module.double()(x.double())
    assert error.norm() < 20 * torch.finfo(dtype).eps * x.double().norm()


@pytest.mark.parametrize("context", [5, N])
@every_causal
@torch.no_grad()
def test_the_formula_of_the_state_is_what_it_keeps(spec: Spec, context: int) -> None:
    _, state = _module(spec).prefill(features(3, context, CHANNELS))
    formula = ATTENTIONS[spec.type].state
    assert formula is not None
    assert formula(CHANNELS, context, **spec.options) == sum(t.numel() for t in state) // 3
    assert all(len(t) == 3 for t in state)


EXPORTED = [
    *(
        Spec(name, {"causal": True, **({"encoding": "rotary"} if "encoding" in each.options else {})})
        for name, each in ATTENTIONS.items()
        if each.is_causal
    ),
    Spec("multihead", {"causal": True, "encoding": "relative"}),
    Spec("decomposed", {"causal": True, "normalisation": "scaling"}),
]


class Steps(nn.Module):
    """One step of causal modules of every type."""

    def __init__(self) -> None:
        super().__init__()
        self.mixers = nn.ModuleList(map(_module, EXPORTED))

    def forward(
        self, x: Tensor, states: list[list[Tensor]], position: Tensor
    ) -> tuple[list[Tensor], list[State]]:
        steps = [m.step(x, tuple(s), position) for m, s in zip(self.mixers, states, strict=True)]
        return [y for y, _ in steps], [state for _, state in steps]


@pytest.mark.slow("exports each type")
@torch.no_grad()
def test_steps_export_to_onnx(tmp_path: Path) -> None:
    """With a dynamic number of positions, and at positions inside and outside of a window."""
    import onnxruntime

    model, x = Steps().eval(), features(2, N, CHANNELS)

    def arguments(length: int) -> tuple[Tensor, list[list[Tensor]], Tensor]:
        states = [list(m.prefill(x[:, :length])[1]) for m in model.mixers]
        return x[:, length : length + 1], states, torch.tensor(length)

    grows = torch.export.Dim("length", min=1, max=4096)
    shapes = [
        [{2: grows} if spec.type == "multihead" else {} for _ in state]
        for spec, state in zip(EXPORTED, arguments(7)[1], strict=True)
    ]
    program = torch.export.export(model, arguments(7), dynamic_shapes=({}, shapes, None))
    torch.onnx.export(program, (), tmp_path / "step.onnx", verbose=False)
    session = onnxruntime.InferenceSession(tmp_path / "step.onnx")
    for length in (2, 36):
        expected, states = model(*arguments(length))
        names = [i.name for i in session.get_inputs()]
        values = [t.numpy() for t in tree_leaves(arguments(length))]
        outputs = session.run(None, dict(zip(names, values, strict=True)))
        targets = [*expected, *(t for state in states for t in state)]
        for output, target in zip(outputs, targets, strict=True):
            torch.testing.assert_close(torch.from_numpy(output), target, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", [name for name, record in ATTENTIONS.items() if record.state])
def test_a_module_that_is_not_causal_does_not_decode(name: str) -> None:
    with pytest.raises(InputError, match="only with causal=true; got causal=false"):
        new(Spec(name)).prefill(features(2, 5, CHANNELS))

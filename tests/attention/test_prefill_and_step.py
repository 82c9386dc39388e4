"""Decoding: prefill and steps compute the outputs of the whole sequence, and keep what the formula counts."""

import pytest
import torch
from torch import Tensor, nn

from attention import ATTENTIONS, Spec
from attention.decoding import State, TokenMixer
from automl.base.errors import InputError
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


@pytest.mark.parametrize("name", [name for name, record in ATTENTIONS.items() if record.state])
def test_a_module_that_is_not_causal_does_not_decode(name: str) -> None:
    with pytest.raises(InputError, match="only with causal=true; got causal=false"):
        new(Spec(name)).prefill(features(2, 5, CHANNELS))

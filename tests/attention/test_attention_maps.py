"""Attention maps: the weights are those that the modules use, and recording them changes nothing."""

import copy
from collections.abc import Callable
from math import prod

import pytest
import torch
from torch import Tensor, nn

from attention import AttentionMap, Gated, Spec, attention_map, attention_maps
from attention.attention_type import Wrapped
from attention.padding import padding
from automl.base.errors import InputError
from tests.helpers.attention_cases import CHANNELS, SPECS, every_spec, features, inputs, new

SHAPES = {"1d": (3, CHANNELS, 30), "2d": (3, CHANNELS, 6, 5)}
# The update of a module, given the weights and the module's input as tokens (B, N, C).
UPDATES: dict[str, Callable[[Gated, Tensor, Tensor], Tensor]] = {
    "sagan": lambda module, rows, x: rows.squeeze(1) @ module.h(x),
    "linear": lambda module, rows, x: module.out_proj(_join(rows @ module._heads(x, None)[2])),
    "sliding": lambda module, rows, x: module.out_proj(
        _join(rows @ module.split_heads(module.in_proj(x))[2])
    ),
    "multihead": lambda module, rows, x: module.out_proj(_join(rows @ _values(module, x))),
    "decomposed": lambda module, rows, x: module.reprojection(_join(rows @ module._heads(module.value(x)))),
    "ssa": lambda module, rows, x: rows.squeeze(1) @ x,
}
UPDATES["ssa-sym"] = UPDATES["ssa"]
with_map = pytest.mark.parametrize("spec", [spec for spec in SPECS if spec.type in UPDATES], ids=str)


def _join(heads: Tensor) -> Tensor:
    return heads.transpose(1, 2).flatten(2)


def record(module: Gated, x: Tensor) -> tuple[Tensor, dict[str, AttentionMap]]:
    """Return the output of a module at a site `here`, and the maps."""
    module.site = "here"
    with attention_maps(module) as maps:
        return module(x), maps


def _values(module: Gated, x: Tensor) -> Tensor:
    return module._heads(x, x.shape[1:2])[2]


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("layout", ["BC*", "B*C", "class token"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@with_map
def test_rows_are_the_weights_of_the_update(
    spec: Spec, shape: tuple[int, ...], layout: str, masked: bool
) -> None:
    module, x = new(spec, gate=1).double().eval(), inputs(spec, *shape, dtype=torch.float64)
    spatial = x.shape[2:]
    module.site = "here"
    mask = torch.arange(prod(spatial)).expand(3, -1) < torch.tensor([[30], [17], [1]]) if masked else None
    tokens = x.flatten(2).mT
    if layout != "BC*":
        module.layout, x = "B*C", x.movedim(1, -1)
    if layout == "class token":
        module.class_tokens, x, spatial = 1, torch.cat([x.flatten(1, -2)[:, :1], tokens], dim=1), (30,)
    with padding(None if mask is None else mask.view(3, *spatial)), attention_maps(module) as maps:
        y = module(x)
    recorded = maps["here"]
    rows = recorded.rows(range(30))
    if _sums_to_one(spec):
        total = rows.sum(-1) if mask is None else rows.sum(-1).mT[mask]  # A padded query may see nothing.
        torch.testing.assert_close(total, torch.ones_like(total))
    update = (y - x)[:, 1:] if layout == "class token" else y - x
    update = update.flatten(1, -2) if layout != "BC*" else update.flatten(2).mT
    if mask is not None:
        assert rows.masked_select(~mask[:, None, None]).abs().max() == 0
        tokens, update = tokens.masked_fill(~mask[..., None], 0), update[mask]
    if "absolute" in spec.options.values():
        return  # The encoding depends on the extents, which `_values` does not get. It changes no value.
    expected = UPDATES[spec.type](module, rows, tokens)
    torch.testing.assert_close(update, expected if mask is None else expected[mask])
    heat = recorded.heat()
    assert heat.shape == (3, *spatial)
    real = torch.ones(3, 30, dtype=torch.float64) if mask is None else mask.double()
    mean = torch.einsum("bhqn,bq->bn", rows.abs(), real) / rows.shape[1] / real.sum(1, keepdim=True)
    torch.testing.assert_close(heat.flatten(1), mean)
    torch.testing.assert_close(recorded.heat(2).flatten(1), rows[:, :, 2].abs().mean(1))


def _sums_to_one(spec: Spec) -> bool:
    return spec.type in ("sagan", "multihead", "linear", "sliding") or (
        spec.type == "decomposed" and spec.options.get("normalisation", "softmax") == "softmax"
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@every_spec
def test_recording_changes_nothing(spec: Spec, dtype: torch.dtype) -> None:
    """Outputs, gradients and states, such as those of a spectral norm, are equal bit by bit."""
    plain = new(spec, gate=0.5)
    plain.site = "here"
    recorded, x = copy.deepcopy(plain), inputs(spec, 2, CHANNELS, 6, 5)
    runs = []
    for module in (plain, recorded):
        for _ in range(2):
            with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
                if module is recorded:
                    with attention_maps(module):
                        y = module(x)
                else:
                    y = module(x)
            y.square().mean().backward()
        runs.append([y, *(p.grad for p in module.parameters()), *module.state_dict().values()])
        assert all(child.training for child in module.modules())
        assert not module._forward_hooks
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_hooks_end_with_the_context_even_after_an_error() -> None:
    module = new(Spec("sagan"))
    module.site = "here"
    with pytest.raises(ZeroDivisionError), attention_maps(module):
        raise ZeroDivisionError
    assert not module._forward_hooks
    with pytest.raises(InputError, match="Linear has no inserted module"), attention_maps(nn.Linear(1, 1)):
        pass


def test_large_maps_are_computed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    _, maps = record(new(Spec("multihead"), gate=1), features(2, CHANNELS, 6, 5))
    whole = maps["here"].heat()
    monkeypatch.setattr(attention_map, "CHUNK", 2 * 4 * 30 * 7)
    torch.testing.assert_close(maps["here"].heat(), whole)
    monkeypatch.setattr(attention_map, "MOST", 2 * 4 * 30 * 30 - 1)
    with pytest.raises(InputError, match=r"30 rows of \(2, 4\) maps have 7,200 weights"):
        _ = maps["here"].weights
    assert maps["here"].rows([3, 4]).shape == (2, 4, 2, 30)


@pytest.mark.parametrize("name", ["timm:se", "timm:eca", "timm:cbam"])
def test_modules_that_rescale_show_their_factors(name: str) -> None:
    module, x = new(Spec(name), gate=1).double().eval(), features(2, CHANNELS, 6, 5, dtype=torch.float64)
    y, maps = record(module, x)
    assert maps["here"].kind == "rescaling"
    factors = (y / x).flatten(2)
    weight = x.square().flatten(2)
    torch.testing.assert_close(
        maps["here"].weights, ((factors * weight).sum(2) / weight.sum(2)).float(), rtol=1e-4, atol=1e-5
    )
    assert maps["here"].heat().shape == (2, 6, 5)
    assert (maps["here"].heat().flatten(1).std(1) < 1e-6).all() == (name != "timm:cbam")
    _, maps = record(Wrapped(CHANNELS, nn.Conv2d(CHANNELS, CHANNELS, 1)), features(2, CHANNELS, 6, 5))
    assert not maps, "a module that mixes elements"

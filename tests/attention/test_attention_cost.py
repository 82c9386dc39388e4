"""The cost formulas of the table compared with torch's counts, and tensors that must not be created."""

from dataclasses import replace
from math import prod

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from attention import Layout, Spec
from attention.sagan import inner_channels
from attention.ssa import resolve_order
from backbones.cost import attention_cost, count_cost
from backbones.site import Site
from tests.helpers import others_slow
from tests.helpers.attention_cases import SPECS, every_spec, formula, inputs, new


@pytest.fixture(autouse=True)
def fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the fused kernel also at the small sizes of these tests, since the formula counts it."""
    monkeypatch.setattr("attention.sagan.FUSED_FROM", 0)


# Resolutions on both sides of N = C, and one at equality.
RESOLUTIONS = [(16, (8, 8)), (16, (3, 2)), (16, (4, 4))]
resolutions = pytest.mark.parametrize(("channels", "resolution"), RESOLUTIONS, ids=str)


def _padding(spec: Spec, channels: int, positions: int) -> tuple[int, int]:
    """Return the MACs and memory that only a CPU spends. It pads sagan's f and g from d to C channels.

    The formula counts the method itself, as on an accelerator.
    """
    if spec.type != "sagan" or spec.options.get("form") == "explicit":
        return 0, 0
    wider = channels - inner_channels(channels)
    return positions * positions * wider, 2 * positions * wider


@every_spec
def test_parameters(spec: Spec) -> None:
    for channels in (8, 16, 24):
        total = sum(p.numel() for p in new(spec, channels).parameters())
        assert formula(spec, channels, 30).parameters == total


@resolutions
@every_spec
def test_macs(spec: Spec, channels: int, resolution: tuple[int, ...]) -> None:
    module = new(spec, channels).eval()  # In training mode, spectral norms multiply too.
    # The counter does not see the products of the fused kernel. The plain one has the same products.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        module(inputs(spec, 1, channels, *resolution))
    extra, _ = _padding(spec, channels, prod(resolution))
    assert formula(spec, channels, *resolution).macs + extra == counter.get_total_flops() / 2


@resolutions
@every_spec
def test_memory(spec: Spec, channels: int, resolution: tuple[int, ...]) -> None:
    module = new(spec, channels, gate=1)
    images = [inputs(spec, batch, channels, *resolution) for batch in (2, 3)]
    values = [_count_kept(module, x.movedim(1, -1).contiguous().movedim(-1, 1)) for x in images]
    _, extra = _padding(spec, channels, prod(resolution))
    assert formula(spec, channels, *resolution).memory + extra == values[1] - values[0]


def _count_kept(module: nn.Module, x: Tensor) -> int:
    """Count values kept for the backward pass, except the input and the module's own."""
    own = {t.untyped_storage().data_ptr() for t in (x, *module.parameters(), *module.buffers())}
    storages: dict[int, Tensor] = {}

    def keep(t: Tensor) -> Tensor:
        storages[t.untyped_storage().data_ptr()] = t
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        module(x.requires_grad_())
    return sum(t.untyped_storage().nbytes() // t.element_size() for p, t in storages.items() if p not in own)


def _site(channels: int, *resolution: int, class_tokens: int = 0) -> Site:
    layout: Layout = "B*C" if class_tokens else "BC*"
    site = Site(name="stem", path="stem", channels=channels, stride=1, resolution=resolution)
    return replace(site, layout=layout, class_tokens=class_tokens)


# Tracing a type takes half a second, and its formula is compared with a count by hand above.
few_types = pytest.mark.parametrize(
    "spec", others_slow(SPECS, Spec("ssa"), Spec("multihead"), Spec("linear")), ids=str
)


@resolutions
@few_types
def test_counts_without_a_formula_agree_with_it(
    spec: Spec, channels: int, resolution: tuple[int, ...]
) -> None:
    extents = inputs(spec, 1, channels, *resolution).shape[2:]
    count, expected = count_cost(spec, _site(channels, *extents)), formula(spec, channels, *extents)
    macs, memory = _padding(spec, channels, prod(resolution))
    assert count.parameters == expected.parameters
    assert count.macs == expected.macs + macs
    assert count.memory == expected.memory + memory


@few_types
def test_class_tokens_do_not_count(spec: Spec) -> None:
    with_token, without = (_site(16, size, class_tokens=size - 24) for size in (25, 24))
    assert with_token.spatial == (24,)
    count, expected = count_cost(spec, with_token), formula(spec, 16, 24)
    assert count.parameters == expected.parameters
    assert count.macs == expected.macs + _padding(spec, 16, 24)[0]
    assert attention_cost(spec, with_token) == attention_cost(spec, without) == expected


class _Largest(TorchDispatchMode):
    """Dispatch mode that records the size of the largest tensor that any operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        output = func(*args, **(kwargs or {}))
        for t in output if isinstance(output, tuple | list) else [output]:
            if isinstance(t, Tensor):
                self.numel = max(self.numel, t.numel())
        return output


@every_spec
def test_weights_of_all_pairs_are_computed_only_by_explicit_forms(spec: Spec) -> None:
    """512 positions of 16 channels: N x N is 262,144 values, the keys of kda's chunks half as many."""
    with _Largest() as largest:
        new(spec, 16, gate=1)(inputs(spec, 1, 16, 16, 32).requires_grad_()).sum().backward()
    weighs_pairs = bool({"conv-first", "relative", "explicit"} & set(spec.options.values()))
    assert (largest.numel >= 512 * 512) == weighs_pairs


@pytest.mark.parametrize("name", ["ssa", "ssa-sym"])
@pytest.mark.parametrize("ks", [1, 3])
def test_auto_is_the_cheaper_order_on_both_sides_of_n_equal_c(name: str, ks: int) -> None:
    for positions in (1, 8, 15, 16, 17, 64, 400):
        auto, *orders = (
            formula(Spec(name, {"ks": ks, "order": order}), 16, positions)
            for order in ("auto", "xxt-first", "conv-first")
        )
        assert auto.macs == min(cost.macs for cost in orders)
    assert resolve_order("auto", channels=16, positions=17) == "xxt-first"
    assert resolve_order("auto", channels=16, positions=15) == "conv-first"

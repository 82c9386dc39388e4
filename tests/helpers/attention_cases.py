"""Cases of the attention tests: every record of the table, each with a few sets of options.

A new record is tested with its defaults, and causal if it can be. A line in `OPTIONS` adds cases.
"""

import pytest
import torch
from torch import Tensor

from attention import ATTENTIONS, Cost, Gated, Spec
from attention.options import OptionValue

OPTIONS: dict[str, list[dict[str, OptionValue]]] = {
    "ssa": [
        {"order": "xxt-first"},
        {"order": "conv-first"},
        {"ks": 3, "order": "xxt-first"},
        {"ks": 3, "order": "conv-first"},
    ],
    "ssa-sym": [{"ks": 3}],
    "sagan": [{"form": "explicit"}],
    "decomposed": [
        {"heads": 4},
        {"normalisation": "scaling", "key_channels": 4, "value_channels": 6, "heads": 2},
        {"normalisation": "scaling-keys", "heads": 2},
        {"normalisation": "none"},
        {"causal": True, "heads": 2, "key_channels": 4, "value_channels": 6},
        {"causal": True, "normalisation": "scaling"},
        {"causal": True, "normalisation": "none", "heads": 2},
    ],
    "multihead": [
        {"heads": 1},
        {"encoding": "absolute"},
        {"encoding": "relative"},
        {"causal": True, "encoding": "relative"},
        {"causal": True, "encoding": "rotary"},
    ],
    "linear": [{"causal": True, "heads": 1}],
    "sliding": [
        {"window": 4, "heads": 2},
        {"causal": True, "encoding": "rotary", "base": 100.0},
        {"causal": True, "window": 3, "heads": 1},
    ],
    "shortconv": [{"kernel": 4}],
    "gated-delta": [{"causal": True, "heads": 2, "kernel": 1}],
    "kda": [{"causal": True, "heads": 2, "kernel": 1}],
}

SPECS = [
    Spec(name, options)
    for name, attention in ATTENTIONS.items()
    for options in ({}, *([{"causal": True}] if attention.is_causal else []), *OPTIONS.get(name, []))
]

every_spec = pytest.mark.parametrize("spec", SPECS, ids=str)
# Specs for which an input is a set of positions, wherever they are.
without_encoding = pytest.mark.parametrize(
    "spec", [spec for spec in SPECS if "encoding" not in spec.options], ids=str
)
with_encoding = pytest.mark.parametrize(
    "spec", [spec for spec in SPECS if spec.options.get("encoding", "rotary") != "rotary"], ids=str
)

CAUSAL = [spec for spec in SPECS if spec.options.get("causal")] + [
    Spec("multihead", {"causal": True, "encoding": "absolute"}),
    Spec("sliding", {"causal": True, "window": 1}),
    Spec("sliding", {"causal": True, "window": 50}),
    Spec("decomposed", {"causal": True, "normalisation": "scaling-keys"}),
    Spec("shortconv", {"causal": True, "kernel": 1}),
    Spec("gated-delta", {"causal": True, "heads": 1, "kernel": 2}),
    Spec("kda", {"causal": True, "heads": 1, "kernel": 2}),
    Spec("linear", {"causal": True, "norm": "head"}),
    Spec("sliding", {"causal": True, "window": 3, "encoding": "rotary", "norm": "head"}),
    Spec("sliding", {"causal": True, "norm": "all"}),
]
every_causal = pytest.mark.parametrize("spec", CAUSAL, ids=str)
on_images = pytest.mark.parametrize(
    "spec", [spec for spec in SPECS if spec.options.get("encoding") != "rotary"], ids=str
)

CHANNELS = 16


def new(spec: Spec, channels: int = CHANNELS, *, gate: float = 0.0) -> Gated:
    """Return a module with a known gate and known weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = spec.build(channels)
    with torch.no_grad():
        module.gamma.fill_(gate)
    return module


def formula(spec: Spec, channels: int, *spatial: int) -> Cost:
    """Return the cost of a module by the formula of its type."""
    cost = ATTENTIONS[spec.type].cost
    assert cost is not None
    return cost(channels, spatial, **spec.options)


def inputs(spec: Spec, *shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> Tensor:
    """Return `features`, with one spatial dimension if the module takes no others."""
    x = features(*shape, dtype=dtype, scale=scale)
    return x.flatten(2) if spec.options.get("encoding") == "rotary" else x


def features(*shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> Tensor:
    """Return reproducible normal noise."""
    generator = torch.Generator().manual_seed(1)
    return (torch.randn(*shape, generator=generator, dtype=torch.float64) * scale).to(dtype)

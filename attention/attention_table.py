"""Attention types by name: of the table, `timm:NAME`, `file.py:Class` and `package.module:Class`.

A new type of the table is one file and one record here. The tests cover every record.

timm's modules have none of timm's own inputs besides the channels, and two spatial dimensions. At other sites
the positions are joined or get a dimension of extent 1.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType, ModuleType
from typing import Any, get_args

from torch import nn

from attention import conv1x1, decomposed, gated_delta, linear, multihead, sagan, shortconv, sliding, ssa
from attention.attention_type import Attention, ForeignAttention
from attention.gated import Layout
from attention.spec import NAMES, TIMM, check_name
from automl.base import loading
from automl.base.errors import InputError


def _record(
    name: str, file: ModuleType, module: Callable[..., nn.Module], source: str, **options: bool
) -> Attention:
    """Return the record of a module. `file` has the formulas of its state and, with `options`, its cost."""
    state = getattr(file, "state", None)
    return Attention(name=name, module=module, cost=partial(file.cost, **options), source=source, state=state)


_RECORDS = (
    _record("ssa", ssa, ssa.SimpleSelfAttention, "SimpleSelfAttention, Doria 2019"),
    _record("ssa-sym", ssa, ssa.SymmetricSelfAttention, "SimpleSelfAttention, mgrankin's symmetric variant"),
    _record("sagan", sagan, sagan.SelfAttention, "arXiv 1805.08318"),
    _record("decomposed", decomposed, decomposed.DecomposedAttention, "arXiv 1812.01243"),
    _record("multihead", multihead, multihead.MultiHeadAttention, "arXiv 1706.03762"),
    _record("linear", linear, linear.LinearAttention, "arXiv 2006.16236"),
    _record("sliding", sliding, sliding.SlidingAttention, "arXiv 2004.05150"),
    _record("shortconv", shortconv, shortconv.ShortConvolution, "arXiv 2511.23404"),
    _record("gated-delta", gated_delta, gated_delta.GatedDeltaNet, "arXiv 2412.06464"),
    _record("kda", gated_delta, gated_delta.KimiDeltaAttention, "arXiv 2510.26692", by_channel=True),
    _record("conv1x1", conv1x1, conv1x1.GatedConv1x1, "control"),
)
ATTENTIONS: Mapping[str, Attention] = MappingProxyType({record.name: record for record in _RECORDS})

assert tuple(ATTENTIONS) == NAMES


def find_attention(name: str) -> Attention:
    """Return the attention type called `name`, after loading user-defined code, or raise InputError."""
    check_name(name)
    if name in ATTENTIONS:
        return ATTENTIONS[name]
    if name.startswith(TIMM):
        return _of_timm(name)
    module = loading.load_object("attention", "Class", name, ATTENTIONS)
    try:
        inspect.signature(module)
    except (TypeError, ValueError) as error:
        raise InputError(f"attention {name!r} must be a class or a function of Python: {error}") from error
    values: dict[str, Any] = {}
    for key, default, choices in (
        ("layout", "BC*", get_args(Layout)),
        ("dimensions", None, (None, 1, 2, 3)),
        ("multiplies", None, (None, True, False)),
    ):
        values[key] = value = getattr(module, key, default)
        if value not in choices:
            raise InputError(
                f"{key} of attention {name!r} must be one of {', '.join(map(str, choices))}; got {value!r}"
            )
    short = loading.short_name(name)
    return ForeignAttention(name=short, module=module, cost=None, source=f"your own: {short}", **values)


def _of_timm(name: str) -> Attention:
    from timm.layers import get_attn  # takes seconds

    module: type[nn.Module] = get_attn(name.removeprefix(TIMM))
    return ForeignAttention(
        name=name, module=module, cost=None, source="timm", dimensions=2, multiplies=True, draws_options=False
    )

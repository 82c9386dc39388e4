"""Attention types by name: of the table, `timm:NAME`, `file.py:Class` and `package.module:Class`.

A new type of the table is one file and one record here. The tests cover every record.

timm's modules have none of timm's own inputs besides the channels, and two spatial dimensions. At other sites
the positions are joined or get a dimension of extent 1.
"""

import inspect
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, get_args

from torch import nn

from attention import conv1x1, decomposed, linear, multihead, sagan, shortconv, sliding, ssa
from attention.attention_type import Attention, ForeignAttention
from attention.gated import Layout
from automl.base import loading
from automl.base.errors import InputError, unknown


def _table(*records: Attention) -> Mapping[str, Attention]:
    table = {record.name: record for record in records}
    assert len(table) == len(records), "two attentions of one name"
    return MappingProxyType(table)


ATTENTIONS = _table(
    Attention(
        name="ssa",
        module=ssa.SimpleSelfAttention,
        cost=ssa.cost,
        source="SimpleSelfAttention, Doria 2019",
    ),
    Attention(
        name="ssa-sym",
        module=ssa.SymmetricSelfAttention,
        cost=ssa.cost,
        source="SimpleSelfAttention, mgrankin's symmetric variant",
    ),
    Attention(
        name="sagan",
        module=sagan.SelfAttention,
        cost=sagan.cost,
        source="arXiv 1805.08318",
    ),
    Attention(
        name="decomposed",
        module=decomposed.DecomposedAttention,
        cost=decomposed.cost,
        state=decomposed.state,
        source="arXiv 1812.01243",
    ),
    Attention(
        name="multihead",
        module=multihead.MultiHeadAttention,
        cost=multihead.cost,
        state=multihead.state,
        source="arXiv 1706.03762",
    ),
    Attention(
        name="linear",
        module=linear.LinearAttention,
        cost=linear.cost,
        state=linear.state,
        source="arXiv 2006.16236",
    ),
    Attention(
        name="sliding",
        module=sliding.SlidingAttention,
        cost=sliding.cost,
        state=sliding.state,
        source="arXiv 2004.05150",
    ),
    Attention(
        name="shortconv",
        module=shortconv.ShortConvolution,
        cost=shortconv.cost,
        state=shortconv.state,
        source="arXiv 2511.23404",
    ),
    Attention(
        name="conv1x1",
        module=conv1x1.GatedConv1x1,
        cost=conv1x1.cost,
        source="control",
    ),
)


TIMM = "timm:"

# Names of `timm.layers.create_attn`, of modules that keep their input's shape. Tested with timm 1.0.31.
TIMM_NAMES = (
    *("bat", "bottleneck", "cbam", "ceca", "coord", "eca", "ecam", "ela", "ese", "gc", "gca", "ge", "halo"),
    *("lambda", "lcbam", "nl", "scoord", "se", "sk", "splat", "strip"),
)


def check_name(name: object) -> None:
    """Raise `InputError` unless `name` may be an attention type. Runs no user-defined code."""
    if isinstance(name, str) and (name in ATTENTIONS or loading.is_user_defined(name)):
        return
    if isinstance(name, str) and name.startswith(TIMM):
        if name.removeprefix(TIMM) not in TIMM_NAMES:
            raise unknown("attention of timm", name.removeprefix(TIMM), TIMM_NAMES)
        return
    hint = f"timm has one: {TIMM}{name}" if name in TIMM_NAMES else "Or take timm:NAME, or file.py:Class"
    raise InputError(f"{unknown('attention', name, ATTENTIONS)} {hint}")


def find_attention(name: str) -> Attention:
    """Return the attention type called `name`. Loads the code of a user-defined type.

    Raises:
        InputError: There is no such type, or its code cannot be loaded.
    """
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

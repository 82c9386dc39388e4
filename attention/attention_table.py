"""The table of attention types. A new type is one file and one record here; the tests cover every record."""

from collections.abc import Mapping
from types import MappingProxyType

from attention import conv1x1, decomposed, linear, multihead, sagan, shortconv, sliding, ssa
from attention.attention_type import Attention


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

"""The table of attention types. A new type is one file and one record here; the tests cover every record."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from attention import conv1x1, decomposed, linear, multihead, sagan, sliding, ssa
from attention.gated import Cost, Gated


@dataclass(frozen=True, kw_only=True)
class Attention:
    """Attention type in the table `attention.ATTENTIONS`.

    Attributes:
        name: The name in configurations and on the command line.
        module: Builds a module: `module(channels, **options)`.
        cost: Computes its cost by a formula: `cost(channels, spatial, **options)`, with the extents of the
            feature map. None if the cost is counted (`backbones.attention_cost`).
        source: The paper or code that it follows.

    Example:
        >>> from attention import ATTENTIONS
        >>> ATTENTIONS["sagan"].source
        'arXiv 1805.08318'
        >>> sorted(ATTENTIONS["multihead"].options)
        ['causal', 'encoding', 'heads']
    """

    name: str
    module: Callable[..., Gated]
    cost: Callable[..., Cost] | None
    source: str

    @property
    def options(self) -> Mapping[str, object]:
        """Return the options and their defaults."""
        parameters = inspect.signature(self.module).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


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
        source="arXiv 1812.01243",
    ),
    Attention(
        name="multihead",
        module=multihead.MultiHeadAttention,
        cost=multihead.cost,
        source="arXiv 1706.03762",
    ),
    Attention(
        name="linear",
        module=linear.LinearAttention,
        cost=linear.cost,
        source="arXiv 2006.16236",
    ),
    Attention(
        name="sliding",
        module=sliding.SlidingAttention,
        cost=sliding.cost,
        source="arXiv 2004.05150",
    ),
    Attention(
        name="conv1x1",
        module=conv1x1.GatedConv1x1,
        cost=conv1x1.cost,
        source="control",
    ),
)

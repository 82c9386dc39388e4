"""The table of attention types. It needs no torch, which takes seconds to import.

A new type is one file and one record here. The tests cover every record.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from attention.options import Option, OptionValue, read_options
from automl.base import loading
from automl.base.errors import InputError, unknown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from attention.gated import Cost, Gated


@dataclass(frozen=True, kw_only=True)
class Attention:
    """Attention type in the table `attention.ATTENTIONS`.

    Attributes:
        name: The name in configurations and on the command line.
        module: Builds a module: `module(channels, **options)`.
        cost: Computes its cost by a formula: `cost(channels, spatial, **options)`. None if the cost is
            counted on a module.
        source: The paper or code that it follows.
        state: Computes how many values one sequence keeps while decoding at `context` tokens:
            `state(channels, context, **options)`. None if the type cannot decode.
        mark: Colour and shape in reports. Empty takes spare ones.

    Example:
        >>> from attention import ATTENTIONS
        >>> ATTENTIONS["sagan"].source
        'arXiv 1805.08318'
        >>> ATTENTIONS["multihead"].options["heads"].default
        4
        >>> [name for name, attention in ATTENTIONS.items() if not attention.has_map]
        ['shortconv', 'gated-delta', 'kda', 'conv1x1']
    """

    name: str
    module: "Callable[..., nn.Module]"
    cost: "Callable[..., Cost] | None"
    source: str
    state: Callable[..., int] | None = None
    mark: str = ""

    @property
    def options(self) -> Mapping[str, Option]:
        """Return the options by name."""
        return read_options(self.module)

    @property
    def is_causal(self) -> bool:
        """Return whether a module can see only earlier positions, as a decoder needs it."""
        return "causal" in self.options

    @property
    def has_map(self) -> bool:
        """Return whether a module computes weights, which `attention_maps` records."""
        from attention.gated import Gated

        return getattr(self.module, "attention_map", Gated.attention_map) is not Gated.attention_map

    @property
    def sums(self) -> bool:
        """Return whether a module sums products over all positions."""
        return bool(getattr(self.module, "sums_over_positions", False))

    @property
    def loops(self) -> bool:
        """Return whether a module computes one chunk of positions after another."""
        return bool(getattr(self.module, "loops", False))

    def build(self, channels: int, size: "Sequence[int]", options: Mapping[str, OptionValue]) -> "Gated":
        """Build a module for features with `channels` channels and the extents `size`."""
        from attention.gated import Gated

        module = self.module(channels, **options)
        assert isinstance(module, Gated)
        return module

    def suggest(self, trial: Any, prefix: str, channels: int) -> dict[str, OptionValue]:
        """Draw the options with several choices from an Optuna trial, as parameters `prefix + option`."""
        return {
            name: trial.suggest_categorical(prefix + name, list(option.choices))
            for name, option in self.options.items()
            if len(option.choices) > 1
        }


class _Row(NamedTuple):
    """Class in a file of this package, which has the formulas `cost`, with arguments `more`, and `state`."""

    file: str
    module: str
    source: str
    mark: str
    more: Mapping[str, bool] = MappingProxyType({})

    def read(self, name: str) -> Attention:
        file = import_module(f"attention.{self.file}")
        module, cost, state = (
            getattr(file, self.module),
            partial(file.cost, **self.more),
            vars(file).get("state"),
        )
        return Attention(name=name, module=module, cost=cost, source=self.source, state=state, mark=self.mark)


_SSA, _SYMMETRIC = "SimpleSelfAttention, Doria 2019", "SimpleSelfAttention, mgrankin's symmetric variant"
RECORDS: dict[str, Attention | _Row] = {
    "ssa": _Row("ssa", "SimpleSelfAttention", _SSA, "blue circle"),
    "ssa-sym": _Row("ssa", "SymmetricSelfAttention", _SYMMETRIC, "sky triangle-down"),
    "sagan": _Row("sagan", "SelfAttention", "arXiv 1805.08318", "green triangle-up"),
    "decomposed": _Row("decomposed", "DecomposedAttention", "arXiv 1812.01243", "purple cross"),
    "multihead": _Row("multihead", "MultiHeadAttention", "arXiv 1706.03762", "vermilion diamond"),
    "linear": _Row("linear", "LinearAttention", "arXiv 2006.16236", "purple triangle-left"),
    "sliding": _Row("sliding", "SlidingAttention", "arXiv 2004.05150", "vermilion square"),
    "shortconv": _Row("shortconv", "ShortConvolution", "arXiv 2511.23404", "grey diamond"),
    "gated-delta": _Row("gated_delta", "GatedDeltaNet", "arXiv 2412.06464", "sky diamond"),
    "kda": _Row("gated_delta", "KimiDeltaAttention", "arXiv 2510.26692", "sky square", {"by_channel": True}),
    "conv1x1": _Row("conv1x1", "GatedConv1x1", "control", "grey square"),
}


class _Attentions(Mapping[str, Attention]):
    """The types by name. Looking one up imports torch, but the names do not."""

    def __getitem__(self, name: str) -> Attention:
        if isinstance(record := RECORDS[name], _Row):
            record = RECORDS[name] = record.read(name)
        return record

    def __contains__(self, name: object) -> bool:
        return name in RECORDS

    def __iter__(self) -> Iterator[str]:
        return iter(RECORDS)

    def __len__(self) -> int:
        return len(RECORDS)


ATTENTIONS: Mapping[str, Attention] = _Attentions()
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

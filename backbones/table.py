"""The table of backbones. A new family is one file that builds it and its records here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from torch import nn

from attention import InputError, unknown
from backbones import xresnet


@dataclass(frozen=True, kw_only=True)
class Backbone:
    """One backbone: `build(classes=, in_channels=, width=)` makes it with a classification head."""

    name: str
    build: Callable[..., nn.Module]
    source: str


def _table(*records: Backbone) -> Mapping[str, Backbone]:
    table = {record.name: record for record in records}
    assert len(table) == len(records), "two backbones of one name"
    return MappingProxyType(table)


BACKBONES = _table(
    *(
        Backbone(name=name, build=partial(xresnet.build, name), source="arXiv 1812.01187, fastai")
        for name in ("xresnet18", "xresnet34", "xresnet50", "xresnet101", "xresnet152")
    )
)


def build(name: str, *, classes: int, in_channels: int = 3, width: float = 1.0) -> nn.Module:
    """A new backbone of the table.

    width: multiplies the channels of the stages; for quick runs.
    Raises InputError for an unknown name or a width that leaves no channels.
    """
    if name not in BACKBONES:
        raise unknown("backbone", name, BACKBONES)
    if not 1 / 16 <= width <= 16:
        raise InputError(f"a backbone's width must lie between 1/16 and 16; got {width}")
    return BACKBONES[name].build(classes=classes, in_channels=in_channels, width=width)

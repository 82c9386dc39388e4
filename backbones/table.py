"""The table of backbones. A new family is one file that builds it and its records here."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from torch import nn

from attention import InputError, unknown
from backbones import larnn, lstm, resnet1d, xresnet

_EVERYWHERE = ("classes", "in_channels")


@dataclass(frozen=True, kw_only=True)
class Backbone:
    """One backbone.

    build: `build(classes=, in_channels=, **options)` makes it with a classification head.
    dimensions: of its input beside batch and channels: 2 of images, 1 of sequences. A sequence model takes
        a mask, bool `(B, T)`, as a second argument.
    source: the paper or code that it follows.
    """

    name: str
    build: Callable[..., nn.Module]
    dimensions: int
    source: str

    @property
    def options(self) -> Mapping[str, Any]:
        """The options and their defaults."""
        parameters = inspect.signature(self.build).parameters.values()
        return {
            p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in _EVERYWHERE
        }


def _table(*records: Backbone) -> Mapping[str, Backbone]:
    table = {record.name: record for record in records}
    assert len(table) == len(records), "two backbones of one name"
    return MappingProxyType(table)


BACKBONES = _table(
    *(
        Backbone(
            name=name, build=partial(xresnet.build, name), dimensions=2, source="arXiv 1812.01187, fastai"
        )
        for name in ("xresnet18", "xresnet34", "xresnet50", "xresnet101", "xresnet152")
    ),
    Backbone(name="resnet1d", build=resnet1d.build, dimensions=1, source="arXiv 1611.06455"),
    Backbone(name="lstm", build=lstm.build_stacked, dimensions=1, source="Hochreiter, Schmidhuber 1997"),
    Backbone(name="bilstm", build=lstm.build_residual, dimensions=1, source="arXiv 1708.08989"),
    Backbone(name="larnn", build=larnn.build, dimensions=1, source="arXiv 1808.05578"),
)


def build(name: str, *, classes: int, in_channels: int = 3, **options: Any) -> nn.Module:
    """A new backbone of the table.

    options: of that backbone; `BACKBONES[name].options` has their names and defaults.
    Raises InputError for an unknown name, an unknown option and a value that it cannot have.
    """
    if name not in BACKBONES:
        raise unknown("backbone", name, BACKBONES)
    record = BACKBONES[name]
    for option, value in options.items():
        if option not in record.options:
            raise unknown(f"option of backbone {name!r}", option, record.options)
        _check(name, option, value, _hints(record.build)[option])
    return record.build(classes=classes, in_channels=in_channels, **options)


def _check(name: str, option: str, value: object, hint: Any) -> None:
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise unknown(f"{option} of backbone {name!r}", value, get_args(hint))
    elif type(value) is not hint and (type(value), hint) != (int, float):
        raise InputError(f"option {option!r} of backbone {name!r} must be {hint.__name__}; got {value!r}")


def _hints(build: Callable[..., nn.Module]) -> Mapping[str, Any]:
    return get_type_hints(build.func if isinstance(build, partial) else build)

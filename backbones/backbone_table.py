"""The table of backbones. A new family is one file that builds it, and its records here or in its task."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin

from torch import Tensor, nn

from automl.base.errors import InputError, unknown
from automl.base.lazy import LazyTable, contributed
from backbones import vit
from backbones.libraries import IMAGENET, Normalisation, xresnet
from backbones.small_resnet import small_resnet

# Parameters of backbones and encoders that the task sets. They are no options.
TASK_PARAMETERS = (
    "classes", "num_classes", "in_channels", "size", "vocabulary", "length", "context", "max_disparity",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Backbone:
    """Backbone in the table, of a library or of the user.

    Attributes:
        name: Name in configurations and on the command line.
        build: Builds the model with a classification head: `build(classes=, in_channels=, **options)`.
        dimensions: Number of input dimensions besides batch and channels: 2 for images, 1 for sequences. A
            sequence model takes a mask, bool `(B, T)`, as a second argument.
        source: The paper or code that it follows.
        takes: Callable whose parameters are the options, if they are not those of `build`.
        normalisation: Normalisation of its images.
        published: Loads published weights: `published(classes=, size=, **options)`. None if there are none.
        shape: Returns the sizes of the layers of a decoder: `shape(**options)`, with all options.
    """

    name: str
    build: Callable[..., nn.Module]
    dimensions: int
    source: str
    takes: Callable[..., Any] | None = None
    normalisation: Normalisation = IMAGENET
    published: Callable[..., Mapping[str, Tensor]] | None = None
    shape: Callable[..., Any] | None = None

    @cached_property
    def options(self) -> Mapping[str, Any]:
        """Return the options and their defaults."""
        return {
            p.name: p.default
            for p in self._parameters.values()
            if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD) and p.name not in TASK_PARAMETERS
        }

    @cached_property
    def hints(self) -> Mapping[str, Any]:
        """Return the annotated types of the options."""
        return {p.name: p.annotation for p in self._parameters.values() if p.annotation is not p.empty}

    @property
    def takes_size(self) -> bool:
        """Return whether the model is built for images of one size."""
        return "size" in self._parameters

    @property
    def is_open(self) -> bool:
        """Return whether it accepts options that its signature does not name."""
        return any(p.kind is p.VAR_KEYWORD for p in self._parameters.values())

    @cached_property
    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        function = self.takes or self.build
        try:
            return inspect.signature(function, eval_str=True).parameters
        except Exception:  # An annotation can be a string for type checkers only.
            return inspect.signature(function).parameters


def table(*records: Backbone) -> Mapping[str, Backbone]:
    """Return records by name."""
    named = {record.name: record for record in records}
    assert len(named) == len(records), "two backbones of one name"
    return MappingProxyType(named)


OWN = table(
    *(
        Backbone(name=name, build=partial(xresnet, name), dimensions=2, source="arXiv 1812.01187, fastai")
        for name in ("xresnet18", "xresnet34", "xresnet50", "xresnet101", "xresnet152")
    ),
    Backbone(name="small-resnet", build=small_resnet, dimensions=2, source="arXiv 1512.03385, torchvision"),
    Backbone(name="vit", build=vit.build, dimensions=2, source="arXiv 2010.11929, 2203.09795; timm"),
)


# The backbones of this package, and those that belong to one task.
BACKBONES = LazyTable(lambda: contributed("backbones"), OWN)


def with_defaults(
    what: str, table: Mapping[str, Backbone], name: str, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return all options of a model of `table`, after a check of their types."""
    if name not in table:
        raise unknown(what, name, table)
    record = table[name]
    for option, value in options.items():
        check_option(what, record, option, value)
    return {**record.options, **options}


def check_option(what: str, record: Backbone, option: str, value: object) -> None:
    """Raise `InputError` if a model has no such option, or its type differs from the annotation."""
    if option not in record.options:
        raise unknown(f"option of {what} {record.name!r}", option, record.options)
    hint = record.hints.get(option)
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise unknown(f"{option} of backbone {record.name!r}", value, get_args(hint))
    elif hint in (bool, int, float, str) and type(value) is not hint and (type(value), hint) != (int, float):
        raise InputError(
            f"option {option!r} of backbone {record.name!r} must be {hint.__name__}; got {value!r}"
        )

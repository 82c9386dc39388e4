"""The table of backbones. A new family is one file that builds it, and its records here."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin

from torch import Tensor, nn

from automl.base.errors import InputError, unknown
from backbones import (
    gpt,
    hugging_face,
    larnn,
    lstm,
    psmnet,
    resnet1d,
    text_encoder,
    text_options,
    vit,
    xresnet,
)
from backbones.decoder_shape import DecoderShape
from backbones.normalisation import IMAGENET, Normalisation

# Parameters of backbones and encoders that the task sets. They are no options.
TASK_PARAMETERS = (
    "classes",
    "num_classes",
    "in_channels",
    "size",
    "vocabulary",
    "length",
    "context",
    "max_disparity",
)


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
        shape: Returns the sizes of a decoder's layers: `shape(**options)`, with all options.
    """

    name: str
    build: Callable[..., nn.Module]
    dimensions: int
    source: str
    takes: Callable[..., Any] | None = None
    normalisation: Normalisation = IMAGENET
    published: Callable[..., Mapping[str, Tensor]] | None = None
    shape: Callable[..., DecoderShape] | None = None

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
    Backbone(name="vit", build=vit.build, dimensions=2, source="arXiv 2010.11929, 2203.09795; timm"),
    Backbone(name="resnet1d", build=resnet1d.build, dimensions=1, source="arXiv 1611.06455"),
    Backbone(name="lstm", build=lstm.build_stacked, dimensions=1, source="Hochreiter, Schmidhuber 1997"),
    Backbone(name="bilstm", build=lstm.build_residual, dimensions=1, source="arXiv 1708.08989"),
    Backbone(name="larnn", build=larnn.build, dimensions=1, source="arXiv 1808.05578"),
)

# Text encoders, with `build(vocabulary=, length=, **options)`.
ENCODERS = _table(
    *(
        Backbone(name=name, build=build, dimensions=1, source="arXiv 1909.09436")
        for name, build in text_encoder.ENCODERS.items()
    )
)

# Causal language models, with `build(vocabulary=, length=, **options)`.
DECODERS = _table(
    Backbone(
        name="gpt",
        build=lambda *, vocabulary, length, **options: gpt.Decoder(vocabulary, length, **options),
        takes=gpt.Decoder,
        dimensions=1,
        source="arXiv 2302.13971",
        shape=gpt.shape,
    )
)


def find_decoder(name: str) -> Backbone:
    """Return the causal language model called `name`: one of `DECODERS`, or `hf:FOLDER` or `hf:NAME`.

    Raises:
        InputError: There is no such model, or it is not causal.
    """
    if not name.startswith(hugging_face.PREFIX):
        if name not in DECODERS:
            raise InputError(f"{unknown('decoder', name, DECODERS)} Or take hf:FOLDER or hf:NAME.")
        return DECODERS[name]
    model = name.removeprefix(hugging_face.PREFIX)
    hugging_face.read_config(model)
    return Backbone(
        name=name,
        build=partial(hugging_face.build, model),
        dimensions=1,
        source="transformers",
        published=partial(hugging_face.published, model) if hugging_face.has_weights(model) else None,
        shape=lambda **_: hugging_face.shape_of(model),
    )


# Models of two rectified images, with `build(max_disparity=, **options)`.
STEREO = _table(Backbone(name="psmnet", build=psmnet.build, dimensions=2, source="arXiv 1803.08669"))


def check_encoder(name: str, options: Mapping[str, Any]) -> None:
    """Check the name and the options of a text encoder.

    Raises:
        InputError: The encoder or an option is unknown, or a value is invalid.
    """
    all_options = _with_defaults("text encoder", ENCODERS, name, options)
    text_options.check(**{k: value for k, value in all_options.items() if k in text_options.LIMITED})


def check_decoder(name: str, options: Mapping[str, Any]) -> None:
    """Check the name and the options of a causal language model.

    Raises:
        InputError: The model or an option is unknown, or a value is invalid.
    """
    record = find_decoder(name)
    values = _with_defaults("decoder", {name: record}, name, options)
    if name in DECODERS:
        gpt.check(**values)


def check_stereo(name: str, options: Mapping[str, Any]) -> None:
    """Check the name and the options of a stereo model.

    Raises:
        InputError: The model or an option is unknown, or a value is invalid.
    """
    psmnet.check(**_with_defaults("stereo model", STEREO, name, options))


def _with_defaults(
    what: str, table: Mapping[str, Backbone], name: str, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return all options of a model of `table`, after a check of their types."""
    if name not in table:
        raise unknown(what, name, table)
    record = table[name]
    for option, value in options.items():
        if option not in record.options:
            raise unknown(f"option of {what} {name!r}", option, record.options)
        check_value(record, option, value)
    return {**record.options, **options}


def check_value(record: Backbone, option: str, value: object) -> None:
    """Raise `InputError` if the type of an option differs from its annotation."""
    hint = record.hints.get(option)
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise unknown(f"{option} of backbone {record.name!r}", value, get_args(hint))
    elif hint in (bool, int, float, str) and type(value) is not hint and (type(value), hint) != (int, float):
        raise InputError(
            f"option {option!r} of backbone {record.name!r} must be {hint.__name__}; got {value!r}"
        )

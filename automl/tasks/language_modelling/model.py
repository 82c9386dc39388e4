"""The causal language models: the built-in decoder, and those of Hugging Face by the prefix `hf:`."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from automl.base.errors import InputError, unknown
from automl.task.subject import Subject
from automl.tasks.language_modelling import gpt, hugging_face
from backbones.backbone_table import Backbone, table, with_defaults
from backbones.example import sum_outputs

OWN = table(
    Backbone(
        name="gpt",
        build=lambda *, vocabulary, length, **options: gpt.Decoder(vocabulary, length, **options),
        takes=gpt.Decoder,
        dimensions=1,
        source="arXiv 2302.13971",
        shape=gpt.shape,
    )
)
VOCABULARY = 10_000  # Vocabulary of a decoder without data.


class _Decoders(dict[str, Backbone]):
    """Decoders by name, with `build(vocabulary=, length=, **options)`. It lists the built-in ones."""

    def __missing__(self, name: str) -> Backbone:
        return find_decoder(name)

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or str(name).startswith(hugging_face.PREFIX)


DECODERS = _Decoders(OWN)


def find_decoder(name: str) -> Backbone:
    """Return the causal language model called `name`: one of `DECODERS`, or `hf:FOLDER` or `hf:NAME`.

    Raises:
        InputError: There is no such model, or it is not causal.
    """
    if not name.startswith(hugging_face.PREFIX):
        if name not in OWN:
            raise InputError(f"{unknown('decoder', name, OWN)} Or take hf:FOLDER or hf:NAME.")
        return OWN[name]
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


def check_decoder(name: str, options: Mapping[str, Any]) -> None:
    """Check the name and the options of a causal language model.

    Raises:
        InputError: The model or an option is unknown, or a value is invalid.
    """
    values = with_defaults("decoder", {name: find_decoder(name)}, name, options)
    if name in OWN:
        gpt.check(**values)


def shape_of(name: str, options: Mapping[str, Any]) -> gpt.DecoderShape:
    """Return the sizes of the layers of a causal language model with these options."""
    record = find_decoder(name)
    assert record.shape is not None, "decoders have one"
    shape: gpt.DecoderShape = record.shape(**{**record.options, **options})
    return shape


def subject(backbone: str, size: int | None, options: Mapping[str, Any]) -> Subject:
    """Return a decoder of texts of 256 tokens or as many as it has positions, or of `size`."""
    check_decoder(backbone, options)
    shape = shape_of(backbone, options)
    vocabulary, length = shape.vocabulary or VOCABULARY, size or min(256, shape.context or 256)
    return Subject(
        name=backbone,
        build=lambda: find_decoder(backbone).build(vocabulary=vocabulary, length=length, **options),
        example=lambda count: torch.zeros(count, length, dtype=torch.int64),
        description=f"a text of {length} tokens from a vocabulary of {vocabulary:,}",
        loss=sum_outputs,
    )

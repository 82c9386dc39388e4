"""The encoders of texts."""

from collections.abc import Mapping
from typing import Any

import torch

from automl.tasks.code_retrieval import encoder, encoder_options
from automl.tasks.subject import Subject
from backbones.backbone_table import Backbone, table, with_defaults
from backbones.example import Example, sum_outputs

# Encoders with `build(vocabulary=, length=, **options)`.
ENCODERS = table(
    *(
        Backbone(name=name, build=build, dimensions=1, source="arXiv 1909.09436")
        for name, build in encoder.ENCODERS.items()
    )
)
VOCABULARY = 10_000  # Vocabulary of an encoder without data.


def check_encoder(name: str, options: Mapping[str, Any]) -> None:
    """Check the name and the options of a text encoder.

    Raises:
        InputError: The encoder or an option is unknown, or a value is invalid.
    """
    values = with_defaults("text encoder", ENCODERS, name, options)
    encoder_options.check(**{k: value for k, value in values.items() if k in encoder_options.LIMITED})


def subject(backbone: str, size: int | None, options: Mapping[str, Any]) -> Subject:
    """Return an encoder of texts of 200 tokens, or of `size`."""
    size = size or 200
    check_encoder(backbone, options)

    def example(count: int) -> Example:
        return torch.zeros(count, size, dtype=torch.int64), torch.ones(count, size, dtype=torch.bool)

    return Subject(
        name=backbone,
        build=lambda: ENCODERS[backbone].build(vocabulary=VOCABULARY, length=size, **options),
        example=example,
        description=f"a text of {size} tokens from a vocabulary of {VOCABULARY:,}",
        loss=sum_outputs,
    )

"""The models of code search: the encoders of texts by name, and two of them whose vectors are compared."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from automl.tasks.code_retrieval import encoder_options
from automl.tasks.code_retrieval.encoder import bow, cnn, cnn_selfattention, selfattention
from automl.tasks.subject import Subject
from backbones.backbone_table import Backbone, table, with_defaults
from backbones.example import Example, sum_outputs

# Texts in several batches of tokens, int `(B, T)`, and mask, bool `(B, T)`. Each batch has its own B and T.
Texts = Sequence[tuple[Tensor, Tensor]]


class TwoTowers(nn.Module):
    """Two encoders of text.

    Source: B. Mitra, N. Craswell, An Introduction to Neural Information Retrieval (2018), section 6.2.

    Args:
        query: Encoder of queries: tokens `(B, T)` and mask `(B, T)` to `(B, D)`.
        code: Encoder of code. It may be the same module.
    """

    def __init__(self, query: nn.Module, code: nn.Module) -> None:
        super().__init__()
        self.query, self.code = query, code

    def forward(self, query: Texts = (), code: Texts = ()) -> tuple[Tensor | None, Tensor | None]:
        """Return the vectors of the queries and of the code, `(sum of B, D)` each. None for missing ones."""
        return _vectors(self.query, query), _vectors(self.code, code)


def _vectors(encoder: nn.Module, texts: Texts) -> Tensor | None:
    return torch.cat([encoder(tokens, mask) for tokens, mask in texts]) if texts else None


# Encoders with `build(vocabulary=, length=, **options)`. A new encoder is a function and its name here.
ENCODERS = table(
    *(
        Backbone(name=name, build=build, dimensions=1, source="arXiv 1909.09436")
        for name, build in (
            ("selfattention", selfattention),
            ("cnn-selfattention", cnn_selfattention),
            ("cnn", cnn),
            ("bow", bow),
        )
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

"""The models of code search: encoders of text to one vector, and two of them whose vectors are compared.

Source: H. Husain et al., CodeSearchNet Challenge (2019), arXiv 1909.09436, section 4: a bag of words, 1-D
convolutions, self-attention as in BERT (arXiv 1810.04805), and convolutions before self-attention.

Real tokens attend only to real tokens, convolutions read zeros at padding as beyond the ends, and pooling
ignores padding. So a text has the same vector however long its padding is.

Options have the defaults of CodeSearchNet's code (https://github.com/github/CodeSearchNet, src/encoders).
Departures: self-attention has two layers, as in the published results, instead of the code's default of
three. Convolutions read zeros at padding instead of an embedding. Attention weights have no dropout. There
are no embeddings of token types, since there would be only one type.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention.padding import padding
from attention.position import sinusoids
from automl.base.errors import InputError
from automl.task.subject import Subject
from automl.tasks.code_retrieval.layers import (
    EPSILON,
    Activation,
    Convolution,
    Layer,
    Pool,
    Pooling,
)
from backbones.backbone_table import Backbone, table, with_defaults
from backbones.example import Example, sum_outputs

Positions = Literal["learned", "sinusoidal", "none"]

LIMITS = {
    "hidden": (8, 4096),
    "layers": (0, 48),
    "convolutions": (0, 48),
    "heads": (1, 256),
    "intermediate": (1, 16384),
    "kernel": (1, 99),
}


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """Options of every encoder, and those of a bag of words: the pooled embeddings of the tokens.

    Attributes:
        hidden: Width of the embedded tokens and of self-attention.
        pooling: Pooling of the vectors of the tokens.
        dropout: Dropout after embedding, convolutions, positions, attention and perceptrons.

    Raises:
        InputError: An option is out of range, or options do not fit together.
    """

    hidden: int = 128
    pooling: Pool = "mean"
    dropout: float = 0.1

    def __post_init__(self) -> None:
        for name, (low, high) in LIMITS.items():
            size = getattr(self, name, low)  # Not every encoder has each of them.
            if not low <= size <= high:
                raise InputError(f"{name} of a text encoder must lie between {low} and {high}; got {size}")
        if not 0 <= self.dropout < 1:
            raise InputError(f"dropout of a text encoder must be at least 0 and below 1; got {self.dropout}")


@dataclass(frozen=True, kw_only=True)
class OrderedOptions(TextOptions):
    """Options of encoders to which the order of the tokens matters.

    Attributes:
        positions: Encoding of the positions. With self-attention it is added after the convolutions as in
            BERT, otherwise before them.
    """

    pooling: Pool = "weighted_mean"
    positions: Positions = "learned"


@dataclass(frozen=True, kw_only=True)
class ConvolutionOptions(OrderedOptions):
    """Options of an encoder of convolutions.

    Attributes:
        convolutions: Number of convolutions.
        kernel: Number of tokens that a convolution covers.
        cnn_activation: Activation of the convolutions.
        residual: If True, each convolution but the first computes `f(W x + x)` instead of `f(W x)`.
    """

    convolutions: int = 3
    kernel: int = 16
    cnn_activation: Activation = "tanh"
    residual: bool = True

    def build(self) -> list[nn.Module]:
        """Return consecutive convolutions, of which the first has no residual connection."""
        return [
            Convolution(
                self.hidden,
                self.kernel,
                activation=self.cnn_activation,
                residual=self.residual and i > 0,
                dropout=self.dropout,
            )
            for i in range(self.convolutions)
        ]


@dataclass(frozen=True, kw_only=True)
class AttentionOptions(OrderedOptions):
    """Options of an encoder of self-attention layers, as in BERT.

    Attributes:
        layers: Number of layers of self-attention.
        heads: Number of heads of each layer. It must divide `hidden`.
        intermediate: Width inside a layer's perceptron.
        attention_activation: Activation of that perceptron.
    """

    layers: int = 2
    heads: int = 8
    intermediate: int = 512
    attention_activation: Activation = "gelu"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hidden % self.heads:
            raise InputError(
                f"hidden must be a multiple of heads; got hidden={self.hidden}, heads={self.heads}"
            )


@dataclass(frozen=True, kw_only=True)
class CombinedOptions(AttentionOptions, ConvolutionOptions):
    """Options of an encoder of convolutions followed by layers of self-attention."""

    convolutions: int = 2
    kernel: int = 8


class Encoder(nn.Module):
    """Encoder of texts to one vector each.

    Args:
        options: Its options, whose class decides on its layers.
        vocabulary: Number of different tokens.
        length: Maximum number of tokens of a text, for learned positions.

    Shape:
        Tokens, int `(B, T)`, and a mask, bool `(B, T)`, to vectors `(B, options.hidden)`.
    """

    def __init__(self, options: TextOptions, *, vocabulary: int, length: int) -> None:
        super().__init__()
        hidden, attends = options.hidden, isinstance(options, AttentionOptions)
        layers = options.build() if isinstance(options, ConvolutionOptions) else []
        self.first = len(layers) if attends else 0  # number of layers before the positions and the norm
        if isinstance(options, AttentionOptions):
            sizes = (hidden, options.heads, options.intermediate, options.dropout)
            layers += [Layer(*sizes, options.attention_activation) for _ in range(options.layers)]
        self.embedding = nn.Embedding(vocabulary, hidden)
        nn.init.normal_(self.embedding.weight, std=hidden**-0.5)
        self.positions = options.positions if isinstance(options, OrderedOptions) else "none"
        if self.positions == "learned":
            # The names in a checkpoint are kept.
            self.register_parameter("places", nn.Parameter(torch.randn(length, hidden) * 0.1 * hidden**-0.5))
        self.norm = nn.LayerNorm(hidden, EPSILON) if attends else nn.Identity()
        self.dropout = nn.Dropout(options.dropout)
        self.layers = nn.ModuleList(layers)
        self.pooling = Pooling(hidden, options.pooling)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return the vectors `(B, D)` of `tokens`, int `(B, T)`, with a mask, bool `(B, T)`."""
        layers = list(self.layers.children())
        with padding(mask):
            x = self.embedding(tokens)
            if self.first:
                x = F.dropout(x, self.dropout.p, self.training)
            for layer in layers[: self.first]:
                x = layer(x)
            if self.positions == "learned":
                x = x + self.get_parameter("places")[: x.shape[1]]
            elif self.positions == "sinusoidal":
                x = x + x.shape[2] ** -0.5 * sinusoids(x.shape[1:2], x.shape[2], x)
            x = self.dropout(self.norm(x))
            for layer in layers[self.first :]:
                x = layer(x)
        y: Tensor = self.pooling(x, mask)
        return y


def build_encoder(kind: type[TextOptions], *, vocabulary: int, length: int, **options: Any) -> Encoder:
    """Build an encoder with options of a kind. Raise `InputError` if they are invalid."""
    return Encoder(kind(**options), vocabulary=vocabulary, length=length)


# Encoders with `build(vocabulary=, length=, **options)`. A new encoder is a class of options and its name.
ENCODERS = table(
    *(
        Backbone(
            name=name, build=partial(build_encoder, kind), takes=kind, dimensions=1, source="arXiv 1909.09436"
        )
        for name, kind in (
            ("selfattention", AttentionOptions),
            ("cnn-selfattention", CombinedOptions),
            ("cnn", ConvolutionOptions),
            ("bow", TextOptions),
        )
    )
)
VOCABULARY = 10_000  # Vocabulary of an encoder without data.


def check_encoder(name: str, options: Mapping[str, Any]) -> TextOptions:
    """Return all options of a text encoder, or raise InputError if one of them is invalid."""
    values = with_defaults("text encoder", ENCODERS, name, options)
    kind = ENCODERS[name].takes
    assert kind is not None
    known: TextOptions = kind(**values)
    return known


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

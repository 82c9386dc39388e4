"""A decoder for causal language models: from tokens to the logits of each next token. Sizes of decoders.

Source: H. Touvron et al., LLaMA (2023), arXiv 2302.13971, section 2.2: RMS norms before the branches (arXiv
1910.07467), rotary positions (arXiv 2104.09864) and SwiGLU perceptrons (arXiv 2002.05202), without biases.
Departures: the head shares the weights of the embedding, and weights are initialised as in GPT-2's code.
Styles: queries and keys of each head are normalised as in Qwen3 (arXiv 2505.09388) and LFM2 (2511.23404).

`prefill` and `step` compute the same logits with a state per layer, so that a further token costs one step.
"""

from dataclasses import dataclass
from math import ceil
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention import Gated
from attention.decoding import Decodes, Mixer, State
from attention.multihead import EPSILON, Norm, QueryKeyNorm, attend_causally
from attention.position import Encoding, turn, turns
from automl.base.errors import InputError

Style = Literal["llama", "qwen3", "lfm2"]

DEVIATION = 0.02  # of new weights
RESIDUAL = ("out_proj.weight", "reprojection.weight")  # matrices whose products are added to the residual


@dataclass(frozen=True, kw_only=True)
class DecoderShape:
    """Sizes of the layers of a causal language model.

    Attributes:
        depth: Number of layers.
        width: Number of channels between layers.
        heads: Number of query heads.
        cache: Number of values that a layer with its own attention keeps of each token while decoding.
        encoding: Position encoding of queries and keys: `rotary`, or `none` if tokens are embedded with their
            positions.
        base: Base of rotary encoding, if it is not the default.
        norm: RMS norms of queries and keys: `none`, `head` of each head, or `all` heads together.
        context: Maximum number of tokens of a model that has a limit.
        vocabulary: Number of tokens of a model that has its own. None: that of the data.
    """

    depth: int
    width: int
    heads: int
    cache: int
    encoding: Encoding
    base: float | None = None
    norm: Norm = "none"
    context: int | None = None
    vocabulary: int | None = None


class CausalSelfAttention(nn.Module):
    """Multi-head self-attention of each token to itself and to earlier ones, with rotary positions.

    Args:
        channels: Width C of the vectors.
        heads: Number of heads.
        context: Number of positions whose rotations are computed once. Others are computed when they come.
        normalises: Normalise the queries and keys of each head.

    Shape:
        `(B, N, C)` to the same shape.
    """

    cosine: Tensor
    sine: Tensor

    def __init__(self, channels: int, heads: int, context: int = 0, *, normalises: bool = False) -> None:
        super().__init__()
        self.heads, self.context = heads, context
        self.norms = QueryKeyNorm("head", heads, channels // heads) if normalises else None
        for name, value in zip(
            ("cosine", "sine"), turns(torch.arange(context) / 1, channels // heads), strict=True
        ):
            self.register_buffer(name, value, persistent=False)
        self.in_proj = nn.Linear(channels, 3 * channels, bias=False)
        self.out_proj = nn.Linear(channels, channels, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the update of each token, `(B, N, C)`."""
        return self.prefill(x)[0]

    def prefill(self, x: Tensor) -> tuple[Tensor, State]:
        """Return the updates `(B, N, C)`, and all keys and values, each `(B, heads, N, d)`."""
        N = x.shape[1]
        if isinstance(N, int) and self.context >= N and x.dtype != torch.float64:
            q, k, v = self._heads(x, self.cosine[:N], self.sine[:N])
        else:
            q, k, v = self._heads(x, *self._turns(torch.arange(N, device=x.device)))
        return self._join(attend_causally(q, k, v)), (k, v)

    def step(self, x: Tensor, state: State, position: Tensor) -> tuple[Tensor, State]:
        """Return the update `(B, 1, C)` of the token at `position`, and the state with its key and value."""
        q, *new = self._heads(x, *self._turns(position.view(1)))
        k, v = (torch.cat(pair, dim=2) for pair in zip(state, new, strict=True))
        return self._join(F.scaled_dot_product_attention(q, k, v)), (k, v)

    def _turns(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        precise = torch.promote_types(self.in_proj.weight.dtype, torch.float32)
        return turns(positions.to(precise), self.in_proj.in_features // self.heads)

    def _heads(self, x: Tensor, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return rotated queries and keys, and values, `(B, heads, N, d)`."""
        q, k, v = self.in_proj(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        q, k = (q, k) if self.norms is None else self.norms(q, k)
        return turn(q, cosine, sine), turn(k, cosine, sine), v

    def _join(self, update: Tensor) -> Tensor:
        y: Tensor = self.out_proj(update.transpose(1, 2).flatten(2))
        return y


def state(channels: int, context: int) -> int:
    """Return the number of values that `CausalSelfAttention` keeps of one sequence of `context` tokens."""
    return 2 * channels * context


def shape(*, depth: int, width: int, heads: int, style: Style = "llama", **_: object) -> DecoderShape:
    """Return the sizes of the layers of a `Decoder` with these options."""
    norm: Norm = "none" if style == "llama" else "head"
    cache = state(width, 1)
    return DecoderShape(depth=depth, width=width, heads=heads, cache=cache, encoding="rotary", norm=norm)


class SwiGLU(nn.Module):
    """Perceptron whose hidden values are gated: `W_o (silu(W_g x) * W_u x)`.

    Args:
        channels: Width C of the vectors.
        hidden: Number of hidden values.

    Shape:
        `(B, N, C)` to the same shape.
    """

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.in_proj = nn.Linear(channels, 2 * hidden, bias=False)
        self.out_proj = nn.Linear(hidden, channels, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the update of each token, `(B, N, C)`."""
        gate, value = self.in_proj(x).chunk(2, dim=-1)
        y: Tensor = self.out_proj(F.silu(gate) * value)
        return y


class Layer(nn.Module):
    """Layer of a decoder: a mixer of tokens and a perceptron, each after a norm.

    Args:
        channels: Width C of the vectors.
        heads: Number of heads.
        hidden: Number of hidden values of the perceptron.
        dropout: Dropout of both branches.
        context: As in `CausalSelfAttention`.
        normalises: As in `CausalSelfAttention`.

    Shape:
        `(B, N, C)` to the same shape.
    """

    mixer: CausalSelfAttention | Mixer

    def __init__(
        self, channels: int, heads: int, hidden: int, dropout: float, context: int, normalises: bool
    ) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(channels, EPSILON), nn.RMSNorm(channels, EPSILON)
        self.mixer = CausalSelfAttention(channels, heads, context, normalises=normalises)
        self.mlp = SwiGLU(channels, hidden)
        self.dropout1, self.dropout2 = nn.Dropout(dropout), nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return the new vectors `(B, N, C)`."""
        return self._add(x, self.mixer(self.norm1(x)))

    def prefill(self, x: Tensor) -> tuple[Tensor, State]:
        """Return the new vectors `(B, N, C)`, and the state of the mixer."""
        update, state = self.mixer.prefill(self.norm1(x))
        return self._add(x, update), state

    def step(self, x: Tensor, state: State, position: Tensor) -> tuple[Tensor, State]:
        """Return the new vectors `(B, 1, C)` of the token at `position`, and the new state of the mixer."""
        update, state = self.mixer.step(self.norm1(x), state, position)
        return self._add(x, update), state

    def _add(self, x: Tensor, update: Tensor) -> Tensor:
        x = x + self.dropout1(update)
        y: Tensor = x + self.dropout2(self.mlp(self.norm2(x)))
        return y


class Decoder(nn.Module):
    """Decoder with causal self-attention, and a site `blockK.mixer` in each layer.

    Args:
        vocabulary: Number V of different tokens.
        context: Maximum number of tokens in training. Rotary positions need no limit.
        depth: Number of layers.
        width: Width C of the vectors.
        heads: Number of heads of each layer.
        mlp: Number of hidden values of each perceptron. 0 takes 8/3 of the width, rounded up to a multiple
            of 8, so that a perceptron has as many weights as an ungated one of four times the width.
        dropout: Dropout of the embedded tokens and of the branches.
        style: Model whose full layers they are. `qwen3` and `lfm2` normalise the queries and keys of each
            head. An export can then be a model of transformers: `llama` with layers that are full or
            sliding, `qwen3` likewise with norms or with full and gated-delta layers, and `lfm2` with full
            layers and short convolutions.

    Raises:
        InputError: An option is out of range.

    Shape:
        Tokens, int64 `(B, N)`, to logits `(B, N, V)`.
    """

    def __init__(
        self,
        vocabulary: int,
        context: int,
        *,
        depth: int = 4,
        width: int = 128,
        heads: int = 4,
        mlp: int = 0,
        dropout: float = 0.0,
        style: Style = "llama",
    ) -> None:
        super().__init__()
        check(depth=depth, width=width, heads=heads, mlp=mlp, dropout=dropout, style=style)
        self.context, self.heads, self.style = context, heads, style
        self.embedding = nn.Embedding(vocabulary, width)
        self.dropout = nn.Dropout(dropout)
        self.hidden = mlp or 8 * ceil(width / 3)
        self.layers = nn.ModuleList(
            Layer(width, heads, self.hidden, dropout, context, style != "llama") for _ in range(depth)
        )
        self.norm = nn.RMSNorm(width, EPSILON)
        self.site_names = {f"layers.{i}": f"block{i + 1}" for i in range(depth)}
        self.initialise_mixer(self)

    def initialise_mixer(self, module: nn.Module) -> None:
        """Draw the matrices of a mixer as GPT-2's code does. Residual projections are smaller.

        With other weights, such as those of Xavier, two layers that solve associative recall do not learn it.
        """
        for name, parameter in module.named_parameters():
            if parameter.ndim == 2:
                is_residual = name.endswith(RESIDUAL)
                nn.init.normal_(parameter, std=DEVIATION / (2 * len(self.layers)) ** (is_residual / 2))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits `(B, N, V)` of `tokens`, int64 `(B, N)`."""
        x = self.dropout(self.embedding(tokens))
        for layer in self.layers:
            x = layer(x)
        return self._head(x)

    def prefill(self, tokens: Tensor, *, last: bool = False) -> tuple[Tensor, list[State]]:
        """Return the logits of `forward`, and the state of each layer after the last token.

        Args:
            tokens: Tokens, int64 `(B, N)`.
            last: Compute only the logits at the last token.

        Returns:
            Logits `(B, N, V)`, or `(B, 1, V)` with `last`, and a state for each layer.

        Raises:
            InputError: A module was inserted that cannot process one token after another.
        """
        self._check_decodes()
        x, states = self.embedding(tokens), []
        for layer in self._layers():
            x, state = layer.prefill(x)
            states.append(state)
        return self._head(x[:, -1:] if last else x), states

    def step(self, token: Tensor, states: list[State], position: Tensor) -> tuple[Tensor, list[State]]:
        """Return the logits at the next token, and the new states.

        Args:
            token: The token, int64 `(B, 1)`.
            states: State of each layer after the earlier tokens.
            position: Number of earlier tokens, an int64 scalar.

        Returns:
            Logits `(B, 1, V)`, and a state for each layer.
        """
        x, new = self.embedding(token), []
        for layer, state in zip(self._layers(), states, strict=True):
            x, state = layer.step(x, state, position)
            new.append(state)
        return self._head(x), new

    def _head(self, x: Tensor) -> Tensor:
        return F.linear(self.norm(x), self.embedding.weight)

    def _layers(self) -> list[Layer]:
        return [layer for layer in self.layers if isinstance(layer, Layer)]

    def _check_decodes(self) -> None:
        """Raise `InputError` if an inserted module has no state, or lies outside of the layers' mixers."""
        mixers = {id(m.site_mixer) for m in self.modules() if isinstance(m, Mixer)}
        inserted = [m for m in self.modules() if isinstance(m, Gated)]
        wrong = [m.site for m in inserted if id(m) not in mixers or not isinstance(m, Decodes)]
        if wrong:
            raise InputError(
                f"the model cannot decode one token after another with modules at "
                f"{', '.join(map(repr, wrong))}: only causal modules at sites blockK.mixer keep a state. "
                f"Run it on the whole text instead"
            )


def check(*, depth: int, width: int, heads: int, mlp: int, dropout: float, style: str) -> None:
    """Raise `InputError` if an option of a decoder is out of range, or if options do not match."""
    if style not in get_args(Style):
        raise InputError(f"style of a decoder must be one of {', '.join(get_args(Style))}; got {style!r}")
    for name, value, least in (
        ("depth", depth, 1),
        ("width", width, 2),
        ("heads", heads, 1),
        ("mlp", mlp, 0),
    ):
        if value < least:
            raise InputError(f"{name} of a decoder must be at least {least}; got {value}")
    if width % (2 * heads):
        raise InputError(
            f"width of a decoder must be an even multiple of heads, since rotary positions turn pairs of "
            f"channels; got width={width}, heads={heads}. Choose width={2 * heads * ceil(width / heads / 2)}"
        )
    if not 0 <= dropout < 1:
        raise InputError(f"dropout of a decoder must be at least 0 and below 1; got {dropout}")

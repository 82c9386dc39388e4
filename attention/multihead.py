"""Multi-head attention over positions: `y = x + gamma * P concat_i softmax(q_i k_i^T / sqrt(d)) v_i`.

Source: A. Vaswani et al., Attention Is All You Need (2017), arXiv 1706.03762, section 3.2.2, inside the gate
of SAGAN, with the parameters of `torch.nn.MultiheadAttention`. A causal module is that of its decoder.

`Heads` is also the base class of other attention whose heads split all channels.

Dot products use torch's fused kernel, or on a CPU in bfloat16 plain products of matrices. The fused kernel
keeps no `N x N` weights, but in bfloat16 it is slow on a CPU. Forward and backward pass of causal attention
of 16 sequences with 4 heads, N = 256 and d = 32 takes 43 ms with it and 14 ms with plain products. That of 12
sequences with N = 64 takes 5.6 and 0.8 ms (AMD EPYC, torch 2.15, 1 thread). At N = 2,048 plain products take
two thirds of the fused kernel's time, but their memory grows with the square of N.
"""

from collections.abc import Sequence
from math import inf, prod
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention.attention_map import AttentionMap, softmax_map
from attention.decoding import State, TokenMixer
from attention.gated import Cost, project
from attention.options import Choices, OptionValue, check_choice
from attention.position import AXES, BUCKETS, ROTARY_BASE, Encoding, RelativeBias, rotate, sinusoids
from automl.base.errors import InputError
from automl.base.units import pluralize

HeadCount = Annotated[int, Choices(1, 2, 4, 8)]
Norm = Literal["none", "head", "all"]  # RMS norms of queries and keys: of each head, or of all together

EPSILON = 1e-6  # of norms, as in the configurations of Qwen3 and OLMo 2


class QueryKeyNorm(nn.Module):
    """RMS norms of queries and of keys, as of A. Henry et al. (2020), arXiv 2010.04245, with weights.

    Args:
        norm: `head` normalises each head with the same weights, as Qwen3 does, and `all` the channels of all
            heads together, as OLMo 2 does.
        heads: Number of heads.
        width: Number of channels of a head.

    Shape:
        Queries and keys `(B, heads, N, d)` to the same shapes.
    """

    def __init__(self, norm: Norm, heads: int, width: int) -> None:
        super().__init__()
        self.norm, size = norm, width if norm == "head" else heads * width
        self.query, self.key = nn.RMSNorm(size, EPSILON), nn.RMSNorm(size, EPSILON)

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Return normalised queries and keys."""
        return self._normalise(self.query, q), self._normalise(self.key, k)

    def _normalise(self, norm: nn.RMSNorm, x: Tensor) -> Tensor:
        joined = x.transpose(1, 2).flatten(2) if self.norm == "all" else x
        y: Tensor = norm(joined.to(norm.weight.dtype)).to(x.dtype)
        return y.unflatten(2, (x.shape[1], -1)).transpose(1, 2) if self.norm == "all" else y


class Heads(TokenMixer):
    """Attention whose heads split the C channels of queries, keys and values.

    Parameter names and initialisation are those of `torch.nn.MultiheadAttention`: one projection with bias
    for queries, keys and values, then the reprojection `out_proj`. `rotate_heads` applies the encoding
    `rotary`, and subclasses apply the others.

    Attributes:
        rate_factors: Factors of the angles of rotary encoding, which a model with scaled positions hands on.
    """

    rate_factors: Tensor

    def __init__(
        self,
        channels: int,
        heads: int,
        causal: bool,
        encoding: Encoding = "none",
        base: float = ROTARY_BASE,
        norm: Norm = "none",
    ) -> None:
        super().__init__(channels, causal)
        check_choice("norm", norm, Norm)
        if heads < 1 or channels % heads:
            raise InputError(f"heads must divide the channels: {channels} channels, {heads} heads")
        if encoding == "rotary" and channels // heads % 2:
            raise InputError(
                "rotary encoding needs heads of an even width; got "
                f"{pluralize(channels // heads, 'channels')} a head. "
                f"Choose another number of heads or another encoding"
            )
        self.heads, self.encoding, self.base, self.norm = heads, encoding, base, norm
        self.norms = None if norm == "none" else QueryKeyNorm(norm, heads, channels // heads)
        if encoding == "rotary":
            self.register_buffer("rate_factors", torch.ones(channels // heads // 2))
        self.in_proj = nn.Linear(channels, 3 * channels)
        self.out_proj = nn.Linear(channels, channels)
        nn.init.xavier_uniform_(self.in_proj.weight)
        nn.init.zeros_(self.in_proj.bias)
        nn.init.zeros_(self.out_proj.bias)

    def split_heads(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values `(B, heads, N, d)` from their projection `(B, N, 3C)`."""
        q, k, v = qkv.unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        return (q, k, v) if self.norms is None else (*self.norms(q, k), v)

    def check_extents(self, spatial: Sequence[int]) -> None:
        if self.encoding == "rotary" and len(spatial) != 1:
            raise InputError(
                f"rotary encoding takes features with one spatial dimension, such as tokens; got "
                f"{len(spatial)}. Choose another encoding"
            )

    def rotate_heads(self, q: Tensor, k: Tensor, start: Tensor | int = 0) -> tuple[Tensor, Tensor]:
        """Return queries and keys at the positions from `start` on, rotated if the encoding is rotary."""
        if self.encoding != "rotary":
            return q, k
        positions = torch.arange(q.shape[-2], device=q.device) + start
        return tuple(rotate(t, positions, self.base, self.rate_factors) for t in (q, k))  # type: ignore[return-value]

    def join_heads(self, update: Tensor) -> Tensor:
        """Return the reprojection `(B, N, C)` of the heads' values `(B, heads, N, d)`."""
        return project(self.out_proj, update.transpose(1, 2).flatten(2))


def parameters(channels: int, heads: int = 1, norm: Norm = "none") -> int:
    """Return the number of parameters of `Heads`."""
    norms = {"none": 0, "head": 2 * channels // heads, "all": 2 * channels}
    return 4 * channels * channels + 4 * channels + 1 + norms[norm]


def norm_memory(channels: int, positions: int, heads: int, norm: Norm) -> int:
    """Return about how many values norms keep: queries and keys twice, and their means of squares."""
    means = {"none": 0, "head": 2 * heads, "all": 2}
    return positions * ((norm != "none") * 4 * channels + means[norm])


class MultiHeadAttention(Heads):
    """Multi-head attention over positions.

    Args:
        channels: Number of channels C of the features.
        heads: Number of heads. It must divide `channels`.
        encoding: Position encoding. `none` adds none, since earlier convolutions encode positions. `absolute`
            adds sinusoids to the input of queries and keys. `relative` adds a learned bias by the offset of
            query and key. `rotary` rotates queries and keys by their position, along one spatial dimension.
        causal: Let a position attend only to itself and to earlier ones.

    Raises:
        InputError: `heads` does not divide `channels`, or the encoding is unknown or does not fit.

    Shape:
        `(B, C, *spatial)` to the same shape, or `(B, *spatial, C)` if `layout` is `B*C`.
    """

    def __init__(
        self, channels: int, *, heads: int = 4, encoding: Encoding = "none", causal: bool = False
    ) -> None:
        super().__init__(channels, heads, causal, encoding)
        check_choice("encoding", encoding, Encoding)
        if encoding == "relative":
            self.bias = RelativeBias(heads)

    def attend(self, x: Tensor, mask: Tensor | None, spatial: Sequence[int]) -> Tensor:
        return self._attend(*self._heads(x, spatial), mask, spatial)

    def begin(self, x: Tensor) -> tuple[Tensor, State]:
        spatial = x.shape[1:2]
        q, k, v = self._heads(x, spatial)
        return self._attend(q, k, v, None, spatial), (k, v)

    def advance(self, x: Tensor, state: State, position: Tensor) -> tuple[Tensor, State]:
        q, *new = self._heads(x, x.shape[1:2], position)
        k, v = (torch.cat(pair, dim=2) for pair in zip(state, new, strict=True))
        bias = self.bias.of_last(k.shape[2]).to(q.dtype)[None] if self.encoding == "relative" else None
        return self.join_heads(F.scaled_dot_product_attention(q, k, v, attn_mask=bias)), (k, v)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, spatial: Sequence[int]) -> Tensor:
        relative = self.encoding == "relative"
        visible = None if mask is None else mask[:, None, None]  # (B, 1, 1, N)
        if self.causal and (relative or visible is not None):
            earlier = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device).tril()
            # A softmax over no position would be NaN, so a masked position attends to itself.
            visible = earlier if visible is None else visible & earlier | (earlier & earlier.mT)
        logit_mask = visible
        if relative:
            bias = self.bias(spatial).to(q.dtype)  # (heads, N, N)
            logit_mask = bias[None] if visible is None else bias.masked_fill(~visible, float("-inf"))
        if self.causal and logit_mask is None:
            update = attend_causally(q, k, v)
        else:
            update = F.scaled_dot_product_attention(q, k, v, attn_mask=logit_mask)
        return self.join_heads(update)  # (B, N, C)

    def attention_map(self, x: Tensor, mask: Tensor | None, spatial: Sequence[int]) -> AttentionMap:
        q, k, _ = self._heads(x, spatial)
        bias = self.bias(spatial).to(q.dtype) if self.encoding == "relative" else None
        after = 0 if self.causal else inf
        return softmax_map(q / q.shape[-1] ** 0.5, k, spatial=spatial, mask=mask, bias=bias, after=after)

    def _heads(
        self, x: Tensor, spatial: Sequence[int], start: Tensor | int = 0
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, `(B, heads, N, d)`, of the positions from `start` on."""
        qkv = project(self.in_proj, x)  # (B, N, 3C)
        # The projection is linear, so that of the sinusoids is added to that of x.
        if self.encoding == "absolute":
            weight = self.in_proj.weight[: 2 * self.channels].to(qkv.dtype)
            encoded = F.linear(sinusoids(spatial, self.channels, qkv, start), weight)  # (N, 2C)
            qkv = qkv + F.pad(encoded, (0, self.channels))
        q, k, v = self.split_heads(qkv)
        return *self.rotate_heads(q, k, start), v


def cost(
    channels: int,
    spatial: Sequence[int],
    *,
    heads: int = 4,
    encoding: Encoding = "none",
    causal: bool = False,
) -> Cost:
    """Compute the cost of one `MultiHeadAttention`. A causal one counts the products that kernels skip."""
    C, N = channels, prod(spatial)
    absolute, relative, rotary = (encoding == name for name in ("absolute", "relative", "rotary"))
    return Cost(
        parameters=parameters(C) + relative * AXES * BUCKETS * heads,
        macs=4 * N * C * C + 2 * N * N * C + absolute * 2 * N * C * C,
        # q, k, v, the mixed values, the update, and the log-sum-exp. A learned bias keeps all weights
        # instead, and rotary encoding the rotated q and k besides.
        memory=5 * N * C + rotary * 2 * N * C + (N if relative else 1) * N * heads,
    )


def state(channels: int, context: int, **options: OptionValue) -> int:
    """Compute the number of values that one sequence keeps while decoding: all keys and values."""
    return 2 * context * channels


BLOCK = 256  # queries. A block of them has no products with keys behind its end.
LONGEST = 1024  # keys that plain products are used for


def attend_causally(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Let each query `(B, heads, N, d)` attend to the keys and values up to its own position."""
    if not _is_fused_slow(q, k):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return _attend_in_blocks(*(t.flatten(0, 1) for t in (q, k, v))).view_as(v)


def attend_where(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    """Let each query attend to some of M keys and values, in `(B, heads, N or M, d)`.

    `visible` is True at the keys of a query, at least one for each, and broadcasts to `(B, heads, N, M)`.
    """
    if not _is_fused_slow(q, k):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
    logits = (q * q.shape[-1] ** -0.5) @ k.mT
    mixed: Tensor = logits.masked_fill(~visible, float("-inf")).softmax(-1) @ v
    return mixed


def has_windows(q: Tensor) -> bool:
    """Return True if `attend_in_window` takes such queries: on a GPU, in half precision."""
    is_half = q.dtype in (torch.bfloat16, torch.float16)
    return q.is_cuda and torch.version.hip is None and is_half and q.shape[-1] % 8 == 0 and q.shape[-1] <= 256


def attend_in_window(q: Tensor, k: Tensor, v: Tensor, before: int, after: int) -> Tensor:
    """Let each query attend to `before` keys before its position and `after` behind it, by FlashAttention.

    All are `(B, heads, N, d)`.
    """
    from torch.nn.attention.varlen import varlen_attn

    B, N = q.shape[0], q.shape[2]
    starts = torch.arange(0, (B + 1) * N, N, device=q.device, dtype=torch.int32)
    q, k, v = (t.transpose(1, 2).flatten(0, 1) for t in (q, k, v))  # (B N, heads, d)
    mixed = varlen_attn(q, k, v, starts, starts, N, N, window_size=(before, after))
    assert isinstance(mixed, Tensor)
    y: Tensor = mixed.unflatten(0, (B, N)).transpose(1, 2)
    return y


def _is_fused_slow(q: Tensor, k: Tensor) -> bool:
    return q.dtype == torch.bfloat16 and q.device.type == "cpu" and k.shape[2] <= LONGEST


def _attend_in_blocks(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return the mixed values `(B, N, d)` of queries, keys and values `(B, N, d)`."""
    length, size = q.shape[1:]
    later = torch.full((length, length), float("-inf"), dtype=q.dtype, device=q.device).triu(1)
    mixed = []
    for start in range(0, length, BLOCK):
        end = min(start + BLOCK, length)
        logits = torch.baddbmm(later[start:end, :end], q[:, start:end], k[:, :end].mT, alpha=size**-0.5)
        mixed.append(logits.softmax(-1) @ v[:, :end])
    return torch.cat(mixed, dim=1)

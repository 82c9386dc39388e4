"""Attention in a sliding window: `y = x + gamma * P concat_h softmax(q_i k_j^T / sqrt(d)) v_j`, j near i.

Source: I. Beltagy et al., Longformer: The Long-Document Transformer (2020), arXiv 2004.05150, section 3.1. If
it is causal, the window ends at the query, as in A. Q. Jiang et al., Mistral 7B (2023), arXiv 2310.06825,
section 2.

The positions of a feature map are in row-major order, without padding. They are split into blocks. Each block
attends to itself and to the blocks beside it, so time and memory are linear in the positions.
"""

from collections.abc import Sequence
from math import inf, prod
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from attention import multihead
from attention.attention_map import AttentionMap, softmax_map
from attention.decoding import State
from attention.gated import Cost, project
from attention.multihead import HeadCount, Heads, Norm
from attention.options import Choices, NotTried, OptionValue, check_choice
from attention.padding import gather_real
from attention.position import ROTARY_BASE
from attention.prefix_sums import join, shift, split
from automl.base.errors import InputError

Encoding = Literal["none", "rotary"]

LEAST_BLOCK = 16  # positions. Products of smaller blocks take no less time.


class SlidingAttention(Heads):
    """Multi-head attention of each position to those in a window around it.

    Args:
        channels: Number of channels C of the features.
        window: Number of positions that a position attends to. The window is centred at the position, or
            ends there if `causal`. Of an even window, one position more is before it than behind.
        heads: Number of heads. It must divide `channels`.
        causal: Let a position attend only to itself and to earlier ones.
        encoding: Position encoding: `none`, or `rotary`, which takes one spatial dimension.
        base: Base of rotary encoding, such as `rope_theta` of a trained model.
        norm: RMS norms of queries and keys: `none`, `head` as in Qwen3, or `all` heads together as in OLMo 2.

    Raises:
        InputError: `window` is below 1, `base` is not above 1, `heads` does not divide `channels`, or the
            encoding or the norm is unknown or does not fit.

    Shape:
        `(B, C, *spatial)` to the same shape, or `(B, *spatial, C)` if `layout` is `B*C`.
    """

    def __init__(
        self,
        channels: int,
        *,
        window: Annotated[int, Choices(9, 33)] = 33,
        heads: HeadCount = 4,
        causal: NotTried = False,
        encoding: Annotated[Encoding, Choices("none")] = "none",
        base: Annotated[float, Choices(ROTARY_BASE)] = ROTARY_BASE,
        norm: Annotated[Norm, Choices("none")] = "none",
    ) -> None:
        super().__init__(channels, heads, causal, encoding, base, norm)
        check_choice("encoding", encoding, Encoding)
        if window < 1:
            raise InputError(f"window must be at least 1; got {window}")
        if not 1 < base < inf:
            raise InputError(f"base must be above 1 and finite; got {base}")
        self.window = window

    def attend(self, x: Tensor, mask: Tensor | None, spatial: Sequence[int]) -> Tensor:
        end: Tensor | int = x.shape[1]
        if mask is not None:  # A window counts real positions, wherever padding is.
            x, ranks = gather_real(x, mask)
            end = mask.sum(1).view(-1, 1, 1, 1)
        update = self._attend(*self._heads(x), end)
        return update if mask is None else update.gather(1, ranks)

    def begin(self, x: Tensor) -> tuple[Tensor, State]:
        N = x.shape[1]
        q, k, v = self._heads(x)
        state = tuple(F.pad(t, (0, 0, self.window - 1, 0))[:, :, N:] for t in (k, v))
        return self._attend(q, k, v, N), state

    def advance(self, x: Tensor, state: State, position: Tensor) -> tuple[Tensor, State]:
        q, *new = self._heads(x, position)
        k, v = (torch.cat(pair, dim=2) for pair in zip(state, new, strict=True))  # (B, heads, window, d)
        visible = torch.arange(1 - self.window, 1, device=x.device) + position >= 0
        update = F.scaled_dot_product_attention(q, k, v, attn_mask=visible[None])
        return self.join_heads(update), (k[:, :, 1:], v[:, :, 1:])

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, end: Tensor | int) -> Tensor:
        """Return the update `(B, N, C)` from heads `(B, heads, N, d)` with keys before `end`."""
        B, N = q.shape[0], q.shape[2]
        before, after, block = _extent(self.window, self.causal)
        if not isinstance(end, Tensor) and multihead.has_windows(q):
            return self.join_heads(multihead.attend_in_window(q, k, v, before, after))
        if not isinstance(N, torch.SymInt) and _keys(after, block) >= N:
            i, j = torch.arange(N, device=q.device)[:, None], torch.arange(N, device=q.device)
            near = (j < end) & (i - j <= before) & (j - i <= after) | (i == j)  # (..., N, N)
            return self.join_heads(multihead.attend_where(q, k, v, near))
        q, k, v = (split(t, block) for t in (q, k, v))
        k, v = (
            torch.cat([shift(t, 1), t, *([shift(t, -1)] if after else [])], dim=-2) for t in (k, v)
        )  # (B, heads, blocks, keys, d)
        starts = torch.arange(q.shape[-3], device=q.device)[:, None, None] * block
        i = starts + torch.arange(block, device=q.device)[:, None]  # (blocks, block, 1)
        j = starts - block + torch.arange(k.shape[-2], device=q.device)  # (blocks, 1, keys)
        visible = (j >= 0) & (j < end) & (i - j <= before) & (j - i <= after)  # (..., blocks, block, keys)
        # A softmax over no position would be NaN, so every position attends to itself.
        visible = (visible | (i == j)).expand(B, *visible.shape[-3:])
        q, k, v = (t.transpose(1, 2).flatten(0, 1) for t in (q, k, v))  # (B blocks, heads, block, d)
        update = multihead.attend_where(q, k, v, visible.flatten(0, 1).unsqueeze(1))
        update = update.unflatten(0, (B, -1)).transpose(1, 2)  # (B, heads, blocks, block, d)
        return self.join_heads(join(update, N))

    def attention_map(self, x: Tensor, mask: Tensor | None, spatial: Sequence[int]) -> AttentionMap:
        q, k, _ = self._heads(x)
        before, after, _ = _extent(self.window, self.causal)
        scaled = q / q.shape[-1] ** 0.5
        return softmax_map(scaled, k, spatial=spatial, mask=mask, before=before, after=after)

    def _heads(self, x: Tensor, start: Tensor | int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, `(B, heads, N, d)`, of the positions from `start` on."""
        q, k, v = self.split_heads(project(self.in_proj, x))
        return *self.rotate_heads(q, k, start), v


def _extent(window: int, causal: bool) -> tuple[int, int, int]:
    """Return how many positions a window has before and after its own, and the size of a block."""
    after = 0 if causal else (window - 1) // 2
    before = window - 1 - after
    return before, after, max(before, LEAST_BLOCK)


def _keys(after: int, block: int) -> int:
    """Return how many keys the queries of a block see. Shorter sequences need no blocks."""
    return (3 if after else 2) * block


def cost(
    channels: int,
    spatial: Sequence[int],
    *,
    window: int = 33,
    heads: int = 4,
    causal: bool = False,
    encoding: Encoding = "none",
    base: float = ROTARY_BASE,
    norm: Norm = "none",
) -> Cost:
    """Compute the cost of one `SlidingAttention`."""
    C, N = channels, prod(spatial)
    _, after, block = _extent(window, causal)
    keys = _keys(after, block)
    if keys >= N:
        padded = keys = N
        # Queries, keys and values, those that are rotated, the mixed values, and the log-sum-exp.
        memory = N * (4 * C + 2 * C * (encoding == "rotary") + heads)
    else:
        padded = -(-N // block) * block
        # Queries, keys and values, the mask, the mixed values, and the log-sum-exp.
        memory = padded * (2 * C + 2 * C * keys // block + keys + heads)
        if heads > 1 or padded > N:
            memory += N * C  # The joined heads. Otherwise they are the mixed values.
    return Cost(
        parameters=multihead.parameters(C, heads, norm),
        macs=4 * N * C * C + 2 * padded * keys * C,
        memory=memory + N * C + multihead.norm_memory(C, N, heads, norm),
    )


def state(channels: int, context: int, *, window: int = 33, **options: OptionValue) -> int:
    """Compute the number of values that one sequence keeps while decoding: keys and values of the window."""
    return 2 * (window - 1) * channels

"""Dot-product attention: torch's fused kernel, or on a CPU in bfloat16 plain products of matrices.

The fused kernel keeps no `N x N` weights, but in bfloat16 it is slow on a CPU. The forward and backward pass
of causal attention of 16 sequences with 4 heads, N = 256 and d = 32 takes 43 ms with it and 14 ms with plain
products. That of 12 sequences with N = 64 takes 5.6 and 0.8 ms (AMD EPYC, torch 2.15, 1 thread). At N = 2,048
plain products take two thirds of the fused kernel's time, but their memory grows with the square of N.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

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

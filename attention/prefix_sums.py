"""Sums over the earlier positions, for causal attention in time and memory linear in the number of positions.

Positions are processed in chunks. Within a chunk, the weights of all pairs are computed. The earlier chunks
are summed to a context of keys and values. Nothing at a position depends on later positions, not even a
maximum that cancels, so the results are causal to the last bit. Exports work for any number of positions.

Source: A. Katharopoulos et al., Transformers are RNNs (2020), arXiv 2006.16236, section 3.3.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 32  # positions
MASKED = -1e30  # Logit of a masked key. It is finite, since a position may see only masked keys.


def causal_sums(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute `y_i = sum_{j <= i} (q_i . k_j) v_j`, `(B, heads, N, e)`, of queries `(B, heads, N, d)`."""
    N, dtype = q.shape[-2], q.dtype
    q, k, v = (split(precise(t), CHUNK) for t in (q, k, v))  # (B, heads, chunks, CHUNK, d)
    within = (q @ k.mT).tril() @ v
    contexts = shift(precise(k.mT @ v).cumsum(dim=-3), 1)  # (B, heads, chunks, d, e), of the earlier chunks
    return join(within + q @ contexts, N).to(dtype)


def causal_softmax_sums(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute `y_i = sum_c q_ic (sum_{j <= i} exp(k_jc) v_j) / (sum_{j <= i} exp(k_jc))`, as `causal_sums`.

    With `L_i` as the logarithm of the denominator, a weight is `exp(k_j - L_i)`. It is split at an earlier
    position m into `exp(k_j - L_m) exp(L_m - L_i)`. Both exponents are at most zero, since L never falls.
    """
    N, dtype = q.shape[-2], q.dtype
    q, k, v = (precise(t) for t in (q, k, v))
    q, k, v, L = (split(t, CHUNK) for t in (q, k, v, _log_sums(k)))
    last = L[..., -1:, :]  # (B, heads, chunks, 1, d)
    contexts = _decayed_sums((k - last).exp().mT @ v, last)
    earlier = (q * (shift(last, 1, MASKED) - L).exp()) @ contexts
    return join(_weights(q, k, L) @ v + earlier, N).to(dtype)


def last_sums(k: Tensor, v: Tensor) -> Tensor:
    """Return the sum of `k_j^T v_j` over all positions `(B, heads, d, e)`, for `next_sums`."""
    return precise(k).mT @ precise(v)


def next_sums(q: Tensor, k: Tensor, v: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
    """Compute `causal_sums` and `last_sums` at one further position, given the earlier `last_sums`."""
    sums = sums + last_sums(k, v)
    return (precise(q) @ sums).to(q.dtype), sums


def last_softmax_sums(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return `sum_j exp(k_j - L) v_j` over all positions, `(B, heads, d, e)`, and L `(B, heads, d, 1)`."""
    k = precise(k).mT
    L = k.logsumexp(dim=-1, keepdim=True)
    return (k - L).exp() @ precise(v), L


def next_softmax_sums(
    q: Tensor, k: Tensor, v: Tensor, sums: Tensor, log_sums: Tensor
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Compute `causal_softmax_sums` at one further position, and `last_softmax_sums` with it.

    `sums` and `log_sums` are `last_softmax_sums` of the earlier positions, zero and `MASKED` without any.
    """
    key = precise(k).mT
    total = torch.stack([precise(log_sums), key]).logsumexp(dim=0)  # `logaddexp` would overflow in ONNX.
    sums = (log_sums - total).exp() * sums + (key - total).exp() @ precise(v)
    return (precise(q) @ sums).to(q.dtype), (sums, total)


def _log_sums(k: Tensor) -> Tensor:
    """Return `L_i = log sum_{j <= i} exp(k_j)`, `(B, heads, N, d)`."""
    if not torch.compiler.is_exporting():
        return k.logcumsumexp(dim=-2)
    # ONNX would take the logarithm of a sum that overflows, also for `logaddexp`.
    chunks = split(k, CHUNK)
    within = _pairs(chunks, 0).logsumexp(dim=-2)  # (B, heads, chunks, CHUNK, d)
    earlier = _pairs(within[..., -1, :], -1).logsumexp(dim=-2)  # (B, heads, chunks, d)
    both = torch.stack([within, earlier.unsqueeze(-2).expand_as(within)])
    return join(both.logsumexp(dim=0), k.shape[-2])


def _pairs(x: Tensor, diagonal: int) -> Tensor:
    """Return `(..., n, n, d)` with `x_j` at each pair (i, j) with `j <= i + diagonal`, else `MASKED`."""
    pairs = torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool, device=x.device).tril(diagonal)
    return x.unsqueeze(-3).masked_fill(~pairs[..., None], MASKED)


def _weights(q: Tensor, k: Tensor, log_sums: Tensor) -> Tensor:
    """Return the lower triangles of `sum_c q_ic exp(k_jc - L_ic)` in each chunk, `(..., CHUNK, CHUNK)`."""
    # Triangles of neighbours are joined, by the square of the pairs between them, until they fill a chunk.
    L = log_sums
    if isinstance(k.shape[-3], torch.SymInt):  # An export cannot reshape an unknown number of triangles.
        return (q.unsqueeze(-2) * (_pairs(k, 0) - L.unsqueeze(-2)).exp()).sum(-1)
    w = (q * (k - L).exp()).sum(-1)[..., None, None]  # (..., CHUNK, 1, 1)
    while (size := w.shape[-1]) < CHUNK:
        (_, q2), (k1, _), (L1, L2) = (t.unflatten(-2, (-1, 2, size)).unbind(-3) for t in (q, k, L))
        m = L1[..., -1:, :]
        square = (q2 * (m - L2).exp()) @ (k1 - m).exp().mT  # (..., pairs, size, size)
        first, second = w.unflatten(-3, (-1, 2)).unbind(-3)
        rows = F.pad(first, (0, size)), torch.cat([square, second], dim=-1)
        w = torch.cat(rows, dim=-2)
    return w.squeeze(-3)


def _decayed_sums(sums: Tensor, last: Tensor) -> Tensor:
    """Return the context of the chunks before each chunk, `(B, heads, chunks, d, e)`, scaled by their last L.

    `sums` are the keys times values of each chunk, scaled by its own last L, and `last` is that L,
    `(B, heads, chunks, 1, d)`.
    """
    before = shift(last, 1, MASKED)  # The last L of the chunk before.
    if isinstance(sums.shape[-3], torch.SymInt):  # An export cannot repeat a step an unknown number of times.
        decay = (_pairs(last.squeeze(-2), -1) - before).exp()  # (B, heads, chunks, chunks, d)
        return torch.einsum("bhnmd,bhmde->bhnde", decay, sums)
    # The gradient of an index would fill a tensor of all chunks for each chunk. That of `unbind` does not.
    each_sum, each_decay = sums.unbind(-3), (before - last).exp().mT.unbind(-3)  # (B, heads, d, 1)
    contexts = [torch.zeros_like(each_sum[0])]
    for new, decay in zip(each_sum[:-1], each_decay[:-1], strict=True):
        contexts.append(torch.addcmul(new, decay, contexts[-1]))
    return torch.stack(contexts, dim=-3)


def precise(x: Tensor) -> Tensor:
    """Return `x` in float32 if its precision is lower."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def sums_cost(positions: int, keys: int, values: int, heads: int, *, softmax: bool) -> tuple[int, int]:
    """Compute the cost of `causal_sums`, or of `causal_softmax_sums`, of N positions, for one example.

    `keys` and `values` are the channels of all heads. Returns multiply-accumulates, and values kept for the
    backward pass.
    """
    chunks, context = -(-positions // CHUNK), keys * values // heads
    N = chunks * CHUNK
    # q, k, v, the weights in the chunks, and the contexts.
    memory = N * (2 * keys + values + CHUNK * heads) + chunks * context
    if not softmax:
        return N * CHUNK * (keys + values) + 2 * N * context, memory
    levels = CHUNK.bit_length() - 1
    memory += 2 * positions * keys  # The input and the result of `_log_sums`.
    memory += N * keys * (1 + (positions < N) + (chunks > 1))  # exp(k - L), padded q, and the scaled q.
    memory += levels * 3 * N * keys // 2  # At each level, half of q and of k, scaled, and the scale of q.
    memory += chunks * keys + (chunks - 1) * context  # The decays and the contexts that they scale.
    return N * (CHUNK - 1) * keys // 2 + N * CHUNK * values + 2 * N * context, memory


def split(x: Tensor, size: int) -> Tensor:
    """Split positions `(..., N, d)` into blocks `(..., blocks, size, d)`, padded by the last position."""
    N = x.shape[-2]
    if isinstance(N, torch.SymInt):
        # An export cannot reshape an unknown length, and treats a single block differently from several.
        starts = torch.arange(N // size + 2, device=x.device)[:, None] * size
        return x[..., (starts + torch.arange(size, device=x.device)).clamp(max=N - 1), :]
    if missing := -N % size:
        x = torch.cat([x, x[..., -1:, :].expand(*x.shape[:-2], missing, -1)], dim=-2)
    blocks: Tensor = x.contiguous().unflatten(-2, (-1, size))  # Products then need no copies of their own.
    return blocks


def join(blocks: Tensor, positions: int) -> Tensor:
    """Return the first `positions` positions of `(..., blocks, size, d)` as `(..., N, d)`."""
    x = blocks.flatten(-3, -2)
    if isinstance(positions, torch.SymInt):
        return x[..., torch.arange(positions, device=x.device), :]
    return x[..., :positions, :]


def shift(blocks: Tensor, by: int, value: float = 0.0) -> Tensor:
    """Move `(..., blocks, size, d)` by 1 or -1 blocks. A block of `value` replaces the missing one."""
    return torch.nn.functional.pad(blocks, (0, 0, 0, 0, by, -by), value=value)

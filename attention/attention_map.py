"""The weights that a module computes in a forward pass."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, prod
from typing import Literal

import torch
from torch import Tensor

from automl.base.errors import InputError

Kind = Literal["positions", "global", "channels", "rescaling"]

MOST = 2**28  # largest number of weights that are computed at once: 1 GiB in float32
EVEN = 1e-3  # relative deviation from the factors of channels, below which all positions are alike
CHUNK = 2**21  # largest number of weights that are computed at once for a sum


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionMap:
    """Weights of one module in one forward pass, in float32 or float64 and without gradients.

    N is the number of positions, the product of `spatial`. Class tokens are not among them.

    Attributes:
        kind: Meaning of `weights`. `positions`: how much each position takes from each other one,
            `(B, heads, N, N)`, each row of sum 1. `global`: the maps of each head that all positions
            read, `(B, heads, d_k, N)`. `channels`: the products of channels, `(B, C, C)`. `rescaling`: the
            factor of each channel, `(B, C)`.
        spatial: Extents of the feature map, in row-major order.
        mask: Bool `(B, N)`, False at padding. None without padding.
        stored: The weights, unless they are computed on request.
        compute_rows: Computes `rows` for indices `(Q,)`.
        factors: The factor of each position of a `rescaling`, `(B, N)`.

    Example:
        >>> import automl, torch
        >>> from torchvision.models import resnet18
        >>> model = automl.insert(resnet18(), {"stage4.block2": automl.Spec("sagan")}).eval()
        >>> with automl.attention_maps(model) as maps:
        ...     logits = model(torch.zeros(2, 3, 64, 64))
        >>> maps["stage4.block2"].weights.shape
        torch.Size([2, 1, 4, 4])
    """

    kind: Kind
    spatial: Sequence[int]
    mask: Tensor | None = None
    stored: Tensor | None = None
    compute_rows: Callable[[Tensor], Tensor] | None = None
    factors: Tensor | None = None

    @property
    def is_even(self) -> bool:
        """Return whether the module rescales all positions of each input alike."""
        return self.factors is not None and bool((self.factors == self.factors[:, :1]).all())

    @property
    def weights(self) -> Tensor:
        """Return the weights. Raise InputError if they are too many for one tensor."""
        return self.rows(range(prod(self.spatial))) if self.stored is None else self.stored

    def rows(self, queries: Sequence[int]) -> Tensor:
        """Compute how much some positions take from all positions.

        Args:
            queries: The positions, Q of them.

        Returns:
            Weights `(B, heads, Q, N)`. The rows of `positions`, and of `global` with a softmax, sum to one.
            Those of `channels` may be negative.

        Raises:
            InputError: The module only rescales its input, or the weights are too many for one tensor.
        """
        if self.compute_rows is None:
            raise InputError("a module that rescales its input takes nothing from other positions")
        first = self.compute_rows(torch.tensor(list(queries)[:1], dtype=torch.long))
        size = first.numel() * len(queries)
        if size > MOST:
            raise InputError(
                f"{len(queries)} rows of {tuple(first.shape[:2])} maps have {size:,} weights, more than "
                f"{MOST:,}; pass fewer inputs, take fewer `rows`, or use `heat`, which needs less memory"
            )
        return self.compute_rows(torch.tensor(list(queries), dtype=torch.long))

    def heat(self, query: int | None = None) -> Tensor:
        """Compute one number for each position, for a picture.

        Args:
            query: The position whose row is returned. By default the mean over all real positions.

        Returns:
            The mean over heads of the absolute weights, `(B, *spatial)`, 0 at padding. The factor of each
            position if the module rescales its input.
        """
        if self.compute_rows is None:
            assert self.factors is not None
            heat = self.factors
        elif query is not None:
            heat = self.rows([query]).abs().mean(1).squeeze(1)
        else:
            heat = self._received(self.compute_rows)
        if self.mask is not None:
            heat = heat.masked_fill(~self.mask, 0)
        return heat.reshape(-1, *self.spatial)

    def _received(self, compute_rows: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the mean of the absolute rows of all real positions, `(B, N)`."""
        N = prod(self.spatial)
        first = compute_rows(torch.zeros(1, dtype=torch.long))
        received = first.new_zeros(first.shape[0], N)
        queries = torch.ones_like(received) if self.mask is None else self.mask.to(received.dtype)
        for index in torch.arange(N).split(max(1, CHUNK // first.numel())):
            received += (queries[:, None, None, index] @ compute_rows(index).abs_()).sum((1, 2))
        return received / (first.shape[1] * queries.sum(1, keepdim=True).clamp(min=1))


def softmax_map(
    q: Tensor,
    k: Tensor,
    *,
    spatial: Sequence[int],
    mask: Tensor | None,
    bias: Tensor | None = None,
    before: float = inf,
    after: float = inf,
) -> AttentionMap:
    """Return the map of a softmax over positions.

    Args:
        q: Queries `(B, heads, N, d)`, scaled.
        k: Keys `(B, heads, N, d)`.
        spatial: Extents of the feature map.
        mask: Bool `(B, N)`, True at positions that may be attended to.
        bias: Added to the logits, `(heads, N, N)`.
        before: Number of positions before a query that it sees.
        after: Number of positions after a query that it sees.
    """

    def rows(index: Tensor) -> Tensor:
        logits = q[:, :, index] @ k.mT
        if bias is not None:
            logits = logits + bias[:, index]
        if mask is not None:
            logits = logits.masked_fill(~mask[:, None, None], float("-inf"))
        if min(before, after) < inf:
            logits = logits.masked_fill(outside(index, logits, mask, before, after), float("-inf"))
        return logits.softmax(dim=-1).nan_to_num_()  # A padded query may see no position.

    return AttentionMap(kind="positions", spatial=spatial, mask=mask, compute_rows=rows)


def outside(
    index: Tensor, rows: Tensor, mask: Tensor | None, before: float = inf, after: float = 0
) -> Tensor:
    """Return which positions lie outside the windows of some queries, bool `(B or 1, 1, Q, N)`.

    Args:
        index: The queries `(Q,)`.
        rows: Their rows `(B, heads, Q, N)`.
        mask: Bool `(B, N)`. A window counts only the positions where it is True.
        before: Number of positions of the window before the query.
        after: Number of positions behind it. By default, the window is causal.
    """
    ranks = torch.arange(rows.shape[-1], device=rows.device)[None] if mask is None else mask.cumsum(1)
    offset = ranks[:, None, None] - ranks[:, None, index, None]
    return (offset < -before) | (offset > after)


def rescaling_map(x: Tensor, y: Tensor, *, spatial: Sequence[int], mask: Tensor | None) -> AttentionMap:
    """Return the map of a module that multiplies its input by factors, measured as y / x.

    The mean of the factors is weighted by the square of the input, so that zeros do not count. It is exact
    for factors that are equal along the axis of the mean. Where all inputs are zero the factor is 1. If the
    factors of the channels explain the output, all positions have their mean.

    Args:
        x: Input `(B, N, C)`, zero at padding.
        y: Output `(B, N, C)`.
        spatial: Extents of the feature map.
        mask: Bool `(B, N)`, False at padding.
    """

    def mean(dim: int) -> Tensor:
        weight = x.square().sum(dim)
        return torch.where(weight > 0, (x * y).sum(dim) / weight, 1)

    channels, positions = mean(1), mean(2)
    rest = (y - x * channels[:, None]).square().sum((1, 2), keepdim=True)
    even = rest <= EVEN**2 * y.square().sum((1, 2), keepdim=True)
    positions = torch.where(even[..., 0], channels.mean(1, keepdim=True), positions)
    return AttentionMap(kind="rescaling", spatial=spatial, mask=mask, stored=channels, factors=positions)

"""Simple self-attention: `y = x + gamma * (x x^T) (W * x)`, with no softmax.

Source: S. Doria, SimpleSelfAttention (2019), https://github.com/sdoria/SimpleSelfAttention, where `W` is a
spectrally normalised 1-D convolution over the flattened positions. The symmetric variant is mgrankin's.

The product can be computed in two orders with the same value. Take N positions, C channels and a 1x1
convolution. Then `(x x^T) (W x)` costs 3 N C^2 and `x (x^T (W x))` costs N C^2 + 2 N^2 C. They are equal at N
= C. Only the second computes an N x N tensor.

Departure from the source: `ssa-sym` symmetrises its weight before normalising it, so that the weight is
symmetric and has norm one. Assigning a symmetric weight in `forward`, as published, has no effect, since
spectral normalisation recomputes the weight from its own copy.
"""

from collections.abc import Sequence
from math import prod
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import spectral_norm

from attention.attention_map import AttentionMap
from attention.gated import Cost, Gated
from attention.options import check_choice
from attention.padding import gather_real
from automl.base.errors import InputError

Order = Literal["auto", "xxt-first", "conv-first"]


class SimpleSelfAttention(Gated):
    """Simple self-attention (SSA).

    Args:
        channels: Number of channels C of the features.
        ks: Kernel size of the convolution along the flattened positions. It must be odd.
        order: Product that is computed first: `xxt-first` or `conv-first`. `auto` takes the cheaper one for
            the N and C of the input.

    Raises:
        InputError: `ks` is even or below 1, or the order is unknown.

    Shape:
        `(B, C, *spatial)` to the same shape, or `(B, *spatial, C)` if `layout` is `B*C`.
    """

    sums_over_positions = True

    def __init__(self, channels: int, *, ks: int = 1, order: Order = "auto") -> None:
        super().__init__(channels)
        if ks < 1 or ks % 2 == 0:
            raise InputError(f"ks must be an odd number of positions, 1 or more; got {ks}")
        check_choice("order", order, Order)
        self.order = order
        self.conv = nn.Conv1d(channels, channels, ks, padding=ks // 2, bias=False)
        nn.init.kaiming_normal_(self.conv.weight)
        self._parametrize()

    def _parametrize(self) -> None:
        spectral_norm(self.conv)

    def attend(self, x: Tensor, mask: Tensor | None, spatial: Sequence[int]) -> Tensor:
        h = self._convolve(x, mask)
        # Rows are positions here, so each product is the transpose of that in the equation.
        if resolve_order(self.order, channels=self.channels, positions=x.shape[1]) == "xxt-first":
            return h @ (x.mT @ x)  # (B, N, C) @ (B, C, C)
        return (h @ x.mT) @ x  # (B, N, N) @ (B, N, C)

    def attention_map(self, x: Tensor, mask: Tensor | None, spatial: Sequence[int]) -> AttentionMap:
        h = self._convolve(x, mask)
        return AttentionMap(
            kind="channels",
            spatial=spatial,
            mask=mask,
            stored=x.mT @ x,
            compute_rows=lambda index: (h[:, index] @ x.mT).unsqueeze(1),
        )

    def _convolve(self, x: Tensor, mask: Tensor | None) -> Tensor:
        weight = self.conv.weight.to(x.dtype)  # (C, C, ks)
        if weight.shape[-1] == 1:
            return F.linear(x, weight.squeeze(-1))  # (B, N, C)
        if mask is None:
            return _along_positions(weight, x)
        # The neighbours of a position are the nearest real ones, wherever padding is. Real positions are
        # moved together for the convolution, and back after it.
        compact, index = gather_real(x, mask)
        return _along_positions(weight, compact).gather(1, index)


def _along_positions(weight: Tensor, x: Tensor) -> Tensor:
    """Convolve `(B, N, C)` along N, with zeros beyond its ends."""
    return F.conv1d(x.mT, weight, padding=weight.shape[-1] // 2).mT


class SymmetricSelfAttention(SimpleSelfAttention):
    """SSA with a symmetric convolution: `W[i, j, k] = W[j, i, k]` after normalisation.

    Takes the arguments of `SimpleSelfAttention`.
    """

    def _parametrize(self) -> None:
        parametrize.register_parametrization(self.conv, "weight", _Symmetric())
        spectral_norm(self.conv)


class _Symmetric(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return (weight + weight.transpose(0, 1)) / 2


def resolve_order(order: Order, *, channels: int, positions: int) -> Order:
    """Return the order of products that an option stands for, with C channels and N positions.

    If N is a symbol, as in an export for any length, `auto` takes the order whose cost is linear in N.
    """
    if order != "auto":
        return order
    return "xxt-first" if isinstance(positions, torch.SymInt) or positions >= channels else "conv-first"


def cost(channels: int, spatial: Sequence[int], *, ks: int = 1, order: Order = "auto") -> Cost:
    """Compute the cost of one `SimpleSelfAttention` or `SymmetricSelfAttention`."""
    C, N = channels, prod(spatial)
    first = resolve_order(order, channels=C, positions=N)
    middle = C * C if first == "xxt-first" else N * N
    return Cost(
        parameters=C * C * ks + 1,
        macs=N * C * C * ks + 2 * middle * (N if first == "xxt-first" else C),
        memory=2 * N * C + middle,  # W x, the middle product, and the update under the gate
    )

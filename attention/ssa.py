"""Simple self-attention: `y = x + gamma * (x x^T) (W * x)`, with no softmax.

Source: S. Doria, SimpleSelfAttention (2019), https://github.com/sdoria/SimpleSelfAttention, where `W` is a
spectrally normalised 1-D convolution over the flattened positions. The symmetric variant is mgrankin's.

The product has two orders with the same value. With N positions and C channels, and counting the
1x1 convolution, `(x x^T) (W x)` costs 3 N C^2 and `x (x^T (W x))` costs N C^2 + 2 N^2 C: they cross at
N = C. Only the second makes an N x N tensor.

Departure from the paper: the weight of `ssa-sym` is symmetrised before it is normalised, so that it is
symmetric and of norm one at the same time. Assigning a symmetric weight in `forward`, as published,
has no effect, since spectral normalisation recomputes the weight from its own copy.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import spectral_norm

from attention.errors import InputError
from attention.gated import Cost, Gated

Order = Literal["auto", "xxt-first", "conv-first"]


class SimpleSelfAttention(Gated):
    """SSA over `channels` channels.

    ks: odd kernel size of the convolution along the flattened positions.
    order: which product comes first; `auto` takes the cheaper one for the input's N and C.
    """

    sums_over_positions = True

    def __init__(self, channels: int, *, ks: int = 1, order: Order = "auto") -> None:
        super().__init__(channels)
        if ks < 1 or ks % 2 == 0:
            raise InputError(f"ks must be an odd number of positions, 1 or more; got {ks}")
        if order not in get_args(Order):
            raise InputError(f"order must be one of {', '.join(get_args(Order))}; got {order!r}")
        self.order = order
        self.conv = nn.Conv1d(channels, channels, ks, padding=ks // 2, bias=False)
        nn.init.kaiming_normal_(self.conv.weight)
        self._parametrize()

    def _parametrize(self) -> None:
        spectral_norm(self.conv)

    def attend(self, x: Tensor, mask: Tensor | None, spatial: Sequence[int]) -> Tensor:
        weight = self.conv.weight.to(x.dtype)  # (C, C, ks)
        if weight.shape[-1] == 1:
            h = F.linear(x, weight.squeeze(-1))  # (B, N, C)
        elif mask is None:
            h = _along_positions(weight, x)
        else:
            # Neighbours are the next real positions, wherever padding stands: these move together and back.
            place = (mask.long().cumsum(1) - 1).clamp(min=0).unsqueeze(2).expand_as(x)
            together = torch.zeros_like(x).scatter_add(1, place, x)  # of the others, zeros are added
            h = _along_positions(weight, together).gather(1, place)
        # Rows are positions here, so every product of the equation appears transposed.
        if resolve(self.order, channels=self.channels, positions=x.shape[1]) == "xxt-first":
            return h @ (x.mT @ x)  # (B, N, C) @ (B, C, C)
        return (h @ x.mT) @ x  # (B, N, N) @ (B, N, C)


def _along_positions(weight: Tensor, x: Tensor) -> Tensor:
    """The convolution of `(B, N, C)` along N, zeros beyond its ends."""
    return F.conv1d(x.mT, weight, padding=weight.shape[-1] // 2).mT


class SymmetricSelfAttention(SimpleSelfAttention):
    """SSA whose convolution has a symmetric weight: `W[i, j, k] = W[j, i, k]` after normalisation."""

    def _parametrize(self) -> None:
        parametrize.register_parametrization(self.conv, "weight", _Symmetric())
        spectral_norm(self.conv)


class _Symmetric(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return (weight + weight.transpose(0, 1)) / 2


def resolve(order: Order, *, channels: int, positions: int) -> Order:
    """The order that is meant by `order` for N = `positions` and C = `channels`.

    Where N is a symbol, as of an export for any length, it is the one whose cost grows with N alone.
    """
    if order != "auto":
        return order
    return "xxt-first" if isinstance(positions, torch.SymInt) or positions >= channels else "conv-first"


def cost(channels: int, positions: int, *, ks: int = 1, order: Order = "auto") -> Cost:
    C, N = channels, positions
    first = resolve(order, channels=C, positions=N)
    middle = C * C if first == "xxt-first" else N * N
    return Cost(
        parameters=C * C * ks + 1,
        macs=N * C * C * ks + 2 * middle * (N if first == "xxt-first" else C),
        memory=2 * N * C + middle,  # W x, the middle product, and the update under the gate
    )

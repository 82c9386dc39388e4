"""Gated short convolution: `y = x + gamma * P (c * conv(b * u))` with `b, c, u = W x`.

Source: Liquid AI, LFM2 Technical Report (2025), arXiv 2511.23404, section 2.1, without biases, and with the
parameters of its code (`Lfm2ShortConv` of transformers). The convolution has one filter for each channel and
acts along the positions. If it is causal, as in LFM2, its last tap is at the position itself. Otherwise the
filter is centred there.

The positions of a feature map are in row-major order, without padding.
"""

from collections.abc import Sequence
from math import prod
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention.decoding import State, TokenMixer
from attention.gated import Cost, project
from attention.options import Choices, NotTried, OptionValue
from attention.padding import gather_real
from automl.base.errors import InputError


class ShortConvolution(TokenMixer):
    """Gated short convolution along the positions.

    Args:
        channels: Number of channels C of the features.
        kernel: Number of taps of the convolution. Of an even number, one tap more is before a position than
            behind.
        causal: Let a position see only itself and earlier ones.

    Raises:
        InputError: `kernel` is below 1.

    Shape:
        `(B, C, *spatial)` to the same shape, or `(B, *spatial, C)` if `layout` is `B*C`.
    """

    sums_over_positions = True  # It sums few, but products of three projections overflow float16, too.

    def __init__(
        self, channels: int, *, kernel: Annotated[int, Choices(3, 7)] = 3, causal: NotTried = False
    ) -> None:
        super().__init__(channels, causal)
        if kernel < 1:
            raise InputError(f"kernel must be at least 1; got {kernel}")
        self.kernel = kernel
        self.in_proj = nn.Linear(channels, 3 * channels, bias=False)
        self.conv = nn.Conv1d(channels, channels, kernel, groups=channels, bias=False)
        self.out_proj = nn.Linear(channels, channels, bias=False)

    def attend(self, x: Tensor, mask: Tensor | None, spatial: Sequence[int]) -> Tensor:
        if mask is not None:  # The taps are at real positions, wherever padding is.
            x, ranks = gather_real(x, mask)
        gate, signal = self._project(x)
        after = 0 if self.causal else (self.kernel - 1) // 2
        update = self._mix(gate, F.pad(signal, (0, 0, self.kernel - 1 - after, after)))
        return update if mask is None else update.gather(1, ranks)

    def begin(self, x: Tensor) -> tuple[Tensor, State]:
        gate, signal = self._project(x)
        signal = F.pad(signal, (0, 0, self.kernel - 1, 0))
        return self._mix(gate, signal), (signal[:, x.shape[1] :],)

    def advance(self, x: Tensor, state: State, position: Tensor) -> tuple[Tensor, State]:
        gate, signal = self._project(x)
        signal = torch.cat([*state, signal], dim=1)  # (B, kernel, C)
        return self._mix(gate, signal), (signal[:, 1:],)

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gate c and the signal b u, `(B, N, C)`."""
        b, c, u = project(self.in_proj, x).chunk(3, dim=-1)
        return c, b * u

    def _mix(self, gate: Tensor, signal: Tensor) -> Tensor:
        """Return the update `(B, N, C)` from the signal with the earlier and later positions of the taps."""
        return project(self.out_proj, gate * convolve(self.conv, signal))


def convolve(conv: nn.Conv1d, signal: Tensor) -> Tensor:
    """Filter each channel of `(B, N + kernel - 1, C)` along the positions, to `(B, N, C)`."""
    taps = conv.weight.to(signal.dtype).squeeze(1).mT.contiguous()  # (kernel, C)
    N = signal.shape[1] + 1 - len(taps)
    y = signal[:, :N] * taps[0]
    for i in range(1, len(taps)):  # On a CPU, a convolution with groups takes five times as long.
        y = torch.addcmul(y, signal[:, i : i + N], taps[i])
    return y


def cost(channels: int, spatial: Sequence[int], *, kernel: int = 3, causal: bool = False) -> Cost:
    """Compute the cost of one `ShortConvolution`."""
    C, N = channels, prod(spatial)
    return Cost(
        parameters=4 * C * C + kernel * C + 1,
        macs=4 * N * C * C,
        # b, c and u, the signal with the positions before and after, its convolution, the gated values, and
        # the update.
        memory=7 * N * C + (kernel - 1) * C,
    )


def state(channels: int, context: int, *, kernel: int = 3, **options: OptionValue) -> int:
    """Compute the number of values that one sequence keeps while decoding: the signal under the taps."""
    return (kernel - 1) * channels

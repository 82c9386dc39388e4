"""Gated delta rule: `y = x + gamma * P concat_h (norm(S_i^T q_i) * silu(z_i))` with a state S of each head.

`S_i = a_i (1 - b_i k_i k_i^T) S_(i-1) + b_i k_i v_i^T`: a position lets the state decay by a, and replaces
the part b of what it holds for the key k by the value v. Keys have length 1.

Source: S. Yang et al., Gated Delta Networks: Improving Mamba2 with Delta Rule (2024), arXiv 2412.06464,
section 3.3, with the parameters of Qwen3.5's code (`Qwen3_5GatedDeltaNet` of transformers). The values of a
head are as wide as its keys. Decays start as those of the authors' code.

Positions are processed in chunks. Those of a chunk depend on each other by a triangular system of equations.
A module that is not causal adds what it computes in both directions.
"""

from collections.abc import Callable, Sequence
from math import log, prod
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention.decoding import State, TokenMixer
from attention.gated import Cost, project, without_autocast
from attention.multihead import EPSILON, HeadCount
from attention.options import Choices, NotTried, OptionValue
from attention.padding import gather_real
from attention.prefix_sums import CHUNK, join, precise, split
from attention.shortconv import convolve
from automl.base.errors import InputError

SMALL_CHUNK = 16  # positions, where each channel decays at its own rate
FASTEST = 16.0  # Rates of decay are drawn between 0 and this, per unit of time.
TIMES = 1e-3, 0.1  # Range of the time that a position takes, where a module is new.


class GatedDeltaNet(TokenMixer):
    """Gated delta rule along the positions, after a short convolution.

    Args:
        channels: Number of channels C of the features.
        heads: Number of heads. It must divide `channels`.
        kernel: Number of taps of the convolution of queries, keys and values. With 1 there is none, only a
            factor for each channel.
        causal: Let a position see only itself and earlier ones.

    Raises:
        InputError: `heads` does not divide `channels`, or `kernel` is below 1.

    Shape:
        `(B, C, *spatial)` to the same shape, or `(B, *spatial, C)` if `layout` is `B*C`.
    """

    sums_over_positions = True
    loops = True

    def __init__(
        self,
        channels: int,
        *,
        heads: HeadCount = 4,
        kernel: Annotated[int, Choices(4)] = 4,
        causal: NotTried = False,
    ) -> None:
        super().__init__(channels, causal)
        if heads < 1 or channels % heads:
            raise InputError(f"heads must divide the channels: {channels} channels, {heads} heads")
        if kernel < 1:
            raise InputError(f"kernel must be at least 1; got {kernel}")
        self.heads, self.kernel = heads, kernel
        self.in_proj_qkv = nn.Linear(channels, 3 * channels, bias=False)
        self.in_proj_b = nn.Linear(channels, heads, bias=False)
        self.make_gates(channels)
        self.conv1d = nn.Conv1d(3 * channels, 3 * channels, kernel, groups=3 * channels, bias=False)
        self.A_log = nn.Parameter(torch.empty(heads).uniform_(1e-2, FASTEST).log())
        self.norm = nn.RMSNorm(channels // heads, EPSILON)
        self.out_proj = nn.Linear(channels, channels, bias=False)

    def make_gates(self, channels: int) -> None:
        """Make the projections of the gate and of the decays."""
        self.in_proj_z = nn.Linear(channels, channels, bias=False)
        self.in_proj_a = nn.Linear(channels, self.heads, bias=False)
        self.dt_bias = draw_times(self.heads)

    def attend(self, x: Tensor, mask: Tensor | None, spatial: Sequence[int]) -> Tensor:
        real = None
        if mask is not None:  # The taps are at real positions, wherever padding is.
            x, ranks = gather_real(x, mask)
            real = torch.arange(x.shape[1], device=x.device) < mask.sum(1, keepdim=True)
        after = 0 if self.causal else (self.kernel - 1) // 2
        signal = F.pad(project(self.in_proj_qkv, x), (0, 0, self.kernel - 1 - after, after))
        inputs = self._inputs(x, signal, real)
        mixed, _ = delta_rule(*inputs)
        if not self.causal:
            mixed = mixed + delta_rule(*(t.flip(2) for t in inputs))[0].flip(2)
        update = self._output(x, mixed)
        return update if mask is None else update.gather(1, ranks)

    def begin(self, x: Tensor) -> tuple[Tensor, State]:
        signal = F.pad(project(self.in_proj_qkv, x), (0, 0, self.kernel - 1, 0))
        mixed, state = delta_rule(*self._inputs(x, signal))
        return self._output(x, mixed), (signal[:, x.shape[1] :], state)

    def advance(self, x: Tensor, state: State, position: Tensor) -> tuple[Tensor, State]:
        signal = torch.cat([state[0], project(self.in_proj_qkv, x)], dim=1)  # (B, kernel, 3C)
        mixed, new = next_delta(state[1], *self._inputs(x, signal))
        return self._output(x, mixed), (signal[:, 1:], new)

    def _inputs(self, x: Tensor, signal: Tensor, real: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return the inputs of `delta_rule`, in float32 or float64."""
        # `signal` is the projection of the positions `x`, `(B, N, C)`, with the earlier and later ones of the
        # taps. Where `real` is False, the state stays.
        qkv = precise(F.silu(convolve(self.conv1d, signal)))
        q, k, v = qkv.unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        q, k = (t * (t.square().sum(-1, keepdim=True) + EPSILON).rsqrt() for t in (q, k))
        b = precise(project(self.in_proj_b, x)).mT.unsqueeze(-1).sigmoid()  # (B, heads, N, 1)
        a = self.time(x).unflatten(2, (self.heads, -1)).transpose(1, 2)  # (B, heads, N, 1 or d)
        a = -precise(self.A_log).exp()[:, None, None] * F.softplus(a)
        if real is not None:
            b, a = (t.masked_fill(~real[:, None, :, None], 0) for t in (b, a))
        return q * q.shape[-1] ** -0.5, k, v, a, b

    def time(self, x: Tensor) -> Tensor:
        """Return the time that each position takes, for each head or channel, before it is made positive."""
        return precise(project(self.in_proj_a, x)) + precise(self.dt_bias)

    def gate(self, x: Tensor) -> Tensor:
        """Return the factors of the values `(B, N, C)`."""
        return F.silu(project(self.in_proj_z, x))

    def _output(self, x: Tensor, mixed: Tensor) -> Tensor:
        """Return the update `(B, N, C)` of the positions `x` from the heads' values `(B, heads, N, d)`."""
        weight = self.norm.weight.to(mixed.dtype)
        normed = F.rms_norm(mixed.transpose(1, 2), weight.shape, weight, EPSILON).flatten(2)
        return project(self.out_proj, normed * self.gate(x))


def draw_times(count: int) -> nn.Parameter:
    """Draw times in `TIMES`, of which it returns the values before the softplus."""
    times = torch.empty(count).uniform_(*map(log, TIMES)).exp()
    return nn.Parameter(times.expm1().log())


def delta_rule(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the gated delta rule of all positions.

    Args:
        q: Queries `(B, heads, N, d)`.
        k: Keys `(B, heads, N, d)`.
        v: Values `(B, heads, N, e)`.
        decay: Logarithm of the state's decay at each position, at most 0, `(B, heads, N, 1)`, or
            `(B, heads, N, d)` for each channel of the keys.
        beta: Part of the value at the key that is replaced, between 0 and 1, `(B, heads, N, 1)`.

    Returns:
        Values at the queries `(B, heads, N, e)`, and the state after the last position, `(B, heads, d, e)`.
    """
    if torch.compiler.is_exporting():
        return _in_graph(q, k, v, decay, beta)
    N, e = v.shape[-2:]
    by_channel = decay.shape[-1] > 1
    size = min(N, SMALL_CHUNK if by_channel else CHUNK)
    inputs = [q, k, v, decay, beta]
    if N % size:  # `split` repeats the last position. This one changes nothing.
        inputs = [F.pad(t, (0, 0, 0, 1)) for t in inputs]
    q, k, v, decay, beta = (split(t, size) for t in inputs)  # (B, heads, chunks, size, d)
    with without_autocast(q.device.type):
        total = decay.cumsum(-2)  # since the start of the chunk
        pairs = _decayed_products(k, total)
        since, until, last = total.exp(), (total[..., -1:, :] - total).exp(), total[..., -1:, :].exp()
        # What positions add at their keys to a state of zeros, and what they erase of another state.
        solution = torch.linalg.solve_triangular(
            pairs(k * beta), torch.cat([v, k * since], -1) * beta, upper=False, unitriangular=True
        )
        state = v.new_zeros(*v.shape[:2], k.shape[-1], e)
        added, read = [], []
        chunks = solution[..., :e], solution[..., e:], k * until, last.mT, q * since
        for new, erased, keys, decayed, queries in zip(*(t.unbind(2) for t in chunks), strict=True):
            added.append(new - erased @ state)
            read.append(queries @ state)
            state = decayed * state + keys.mT @ added[-1]
        y = torch.stack(read, dim=2) + pairs(q) @ torch.stack(added, dim=2)
        return join(y, N), state


def _decayed_products(k: Tensor, total: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a function from queries `(..., size, d)` to their products with the keys at or before them."""
    # Keys decay until the query. `total` is the decay since the start of the chunk, `(..., size, 1)`. If it
    # is that of each channel, the exponents are of pairs of positions, since a position's own would overflow.
    size = k.shape[-2]
    later = torch.ones(size, size, dtype=torch.bool, device=k.device).triu(1)
    if total.shape[-1] == 1:
        decays = (total - total.mT).masked_fill(later, float("-inf")).exp()  # (..., size, size)
        return lambda q: q @ k.mT * decays
    exponents = total.unsqueeze(-2) - total.unsqueeze(-3)  # (..., size, size, d)
    keys = k.unsqueeze(-3) * exponents.masked_fill(later.unsqueeze(-1), float("-inf")).exp()
    return lambda q: (keys * q.unsqueeze(-2)).sum(-1)


def _in_graph(*inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Compute `delta_rule` by a loop over positions. ONNX has no solver, and the number may be unknown."""
    _, k, v, *_ = inputs
    start = v.new_zeros(*v.shape[:2], k.shape[-1], v.shape[-1])

    def step(state: Tensor, *inputs: Tensor) -> list[Tensor]:
        y, state = next_delta(state, *inputs)
        return [state, y]

    state, y = torch.ops.higher_order.scan(step, [start], [t.unsqueeze(3).movedim(2, 0) for t in inputs], ())
    return y.movedim(0, 2).squeeze(3), state


def next_delta(
    state: Tensor, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute `delta_rule` at one position after `state`, `(B, heads, 1, e)`, and the state after it."""
    with without_autocast(q.device.type):
        state = precise(state) * decay.exp().mT
        state = state + k.mT @ ((v - k @ state) * beta)
        return q @ state, state


def cost(
    channels: int,
    spatial: Sequence[int],
    *,
    heads: int = 4,
    kernel: int = 4,
    causal: bool = False,
    by_channel: bool = False,
) -> Cost:
    """Compute the cost of one `GatedDeltaNet`, or with decays `by_channel` of one `KimiDeltaAttention`.

    The triangular systems, and products of keys that decay by channel, are no matrix products.
    """
    C, N, d = channels, prod(spatial), channels // heads
    gates, hidden = (4 * C * d, 2 * d) if by_channel else (C * C + C * heads, C)
    by_channel = by_channel and d > 1  # A head of one channel has one decay.
    size, directions = min(N, SMALL_CHUNK if by_channel else CHUNK), 1 if causal else 2
    chunks, rates = -(-N // size), C if by_channel else heads
    P = chunks * size  # positions with padding
    # Both products of keys and queries with their decays, and without them or, by channel, of the keys alone;
    # beta and the decays of positions and chunks; the states; queries, keys and values, scaled, and what
    # positions add. The state before the first chunk is a constant, so that the only chunk keeps no queries
    # for it.
    memory = P * size * (2 * heads + (2 * C if by_channel else 3 * heads)) + P * (heads + 2 * rates)
    memory += chunks * (rates + C * d) + (11 - (chunks == 1)) * P * C
    # The signal under the taps, its convolution before and after the activation, the norms, b and the decays.
    outside = 3 * C * (3 * N + kernel - 1) + N * (4 * heads + 2 * rates)
    # The mixed values, normalised, scaled and gated; the update; the gate after the activation, and before it
    # or, by channel, the few channels.
    outside += (P if causal else N) * C + 5 * N * C + N * hidden
    products = (size if by_channel else 3 * size) + 3 * d
    return Cost(
        parameters=4 * C * C + gates + C * heads + 3 * C * kernel + heads + rates + d + 1,
        macs=N * (4 * C * C + gates + C * heads) + directions * P * C * products,
        memory=directions * memory + outside,
    )


def state(channels: int, context: int, *, heads: int = 4, kernel: int = 4, **options: OptionValue) -> int:
    """Compute the number of values that one sequence keeps while decoding: the signal and the state S."""
    return (kernel - 1) * 3 * channels + channels * (channels // heads)


class KimiDeltaAttention(GatedDeltaNet):
    """Kimi Delta Attention: `y = x + gamma * P concat_h (norm(S_i^T q_i) * sigmoid(z_i))`.

    `S_i = (1 - b_i k_i k_i^T) diag(a_i) S_(i-1) + b_i k_i v_i^T`: each channel of the keys decays at its own
    rate a. The decays and the gate z are projections of as few channels as a head has. The
    arguments are those of the base.

    Source: Kimi Team, Kimi Linear (2025), arXiv 2510.26692, section 3, with the parameters of
    `KimiLinearDeltaAttention` of transformers.
    """

    def make_gates(self, channels: int) -> None:
        width = channels // self.heads
        for name in ("in_proj_z", "in_proj_a"):
            few = nn.Linear(channels, width, bias=False), nn.Linear(width, channels, bias=False)
            self.add_module(name, nn.Sequential(*few))
        self.dt_bias = draw_times(channels)

    def time(self, x: Tensor) -> Tensor:
        return precise(_project_twice(self.in_proj_a, x)) + precise(self.dt_bias)

    def gate(self, x: Tensor) -> Tensor:
        return _project_twice(self.in_proj_z, x).sigmoid()


def _project_twice(layers: nn.Module, x: Tensor) -> Tensor:
    for layer in layers.children():
        assert isinstance(layer, nn.Linear)
        x = project(layer, x)
    return x

"""The loop over time of a LARNN layer, as its equations are written.

For t = 0 .. T - 1, with h_0 = c_0 = 0 and the memory m_j = memory (c_j, 1) of each state c_j:

    o, i, f, g, q = inputs (x_t, h_t, 1)
    a = sum over j of softmax_j(q . keys of m_j) values of m_j   over the `window` latest states c_j, j <= t
    o, i, f, g += attention a
    c_t+1 = sigmoid(f) c_t + sigmoid(i) tanh(g)
    h_t+1 = sigmoid(o) elu(c_t+1)                              or tanh

Optionally q passes an ELU, a passes a linear map and an ELU, and a, c and h pass a batch norm each.

`run` computes this step by step with torch's operations. The other forms, `fast` and
`scan`, are tested against it. Its backward pass computes the attention to each window again,
so that the windows of all steps are not kept. Features come before the batch, (H, B): operations split or sum
the features, in rows of B neighbours, of which a processor handles many at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Weights of one layer of H units, for an input of C channels.

    Attributes:
        inputs: (5H, C + H + 1), from input, hidden state and a one to the gates and the query.
        attention: (4H, H), from the attention's result to the gates.
        memory: (2H, H + 1), from a state and a one to its keys and values.
        offsets: (window, 2H), added to keys and values by position in the window, the latest last. None
            without encodings.
        query: (H), factor of the query after its ELU. None if the query has no ELU.
        output: (H, H + 1), from the attention's result and a one to the input of its ELU. None without both.
        affine: (3, 2, H), scale and shift of the attention's result, of the cell and of the hidden state, for
            evaluation with their norms. None without norms.
    """

    inputs: Tensor
    attention: Tensor
    memory: Tensor
    offsets: Tensor | None
    query: Tensor | None = None
    output: Tensor | None = None
    affine: Tensor | None = None

    @property
    def hidden(self) -> int:
        return self.attention.shape[1]


@dataclass(frozen=True, kw_only=True)
class Norm:
    """Batch norm of the memory in each window, for training.

    Attributes:
        weight: Scale (2H).
        bias: Shift (H) of the values.
        seen: (T, B), 1 where a state counts, 0 where it is padding.
        eps: Added to the variance.
    """

    weight: Tensor
    bias: Tensor
    seen: Tensor
    eps: float


@dataclass(frozen=True, kw_only=True)
class CellNorm:
    """Batch norms of the attention's result, of the cell and of the hidden state, for training.

    Attributes:
        weight: Scale (3, H).
        bias: Shift (3, H).
        real: (T, B), 1 where there is an input, 0 at padding.
        eps: Added to the variance.
    """

    weight: Tensor
    bias: Tensor
    real: Tensor
    eps: float


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Options of the loop.

    Attributes:
        heads: Number of heads.
        window: Number of states attended to.
        elu: Whether the cell's activation is ELU instead of tanh.
        activation: Whether keys and values pass an ELU.
    """

    heads: int
    window: int
    elu: bool
    activation: bool


@dataclass(frozen=True, kw_only=True)
class Result:
    """States of all steps, and the statistics of the norms, which have no gradient.

    Attributes:
        states: (B, H, T).
        mean: (T, 2H), of the memory in the windows. None without a `Norm`.
        variance: (T, 2H), as `mean`.
        cell_mean: (T, 3, H), of the values that a `CellNorm` normalises. None without one.
        cell_variance: (T, 3, H), as `cell_mean`.
    """

    states: Tensor
    mean: Tensor | None = None
    variance: Tensor | None = None
    cell_mean: Tensor | None = None
    cell_variance: Tensor | None = None


class State(NamedTuple):
    """State that a step passes to the next one.

    Attributes:
        hidden: (H, B).
        cell: (H, B).
        memory: Keys and values of earlier cells, each (2H, B). The latest is last. `window - 1` at most.
    """

    hidden: Tensor
    cell: Tensor
    memory: tuple[Tensor, ...] = ()


def attend(query: Tensor, memory: Tensor, heads: int) -> Tensor:
    """Attend with a query (H, B) to the memory (n, 2H, B). Return the result (H, B)."""
    keys, values = memory.unflatten(1, (2, heads, -1)).unbind(1)  # (n, heads, d, B)
    p = (keys * query.unflatten(0, (heads, -1))).sum(2).softmax(0)  # (n, heads, B)
    result: Tensor = (values * p.unsqueeze(2)).sum(0).flatten(0, 1)
    return result


def run(
    x: Tensor, weights: Weights, kind: Kind, norm: Norm | None = None, cell_norm: CellNorm | None = None
) -> Result:
    """Run one step after the other on `x`, (B, C, T)."""
    zeros = x.new_zeros(weights.hidden, x.shape[0])
    state = State(zeros, zeros)
    states, means, variances, cell_means, cell_variances = [], [], [], [], []
    for t in range(x.shape[2]):
        seen = None if norm is None else norm.seen[max(0, t + 1 - kind.window) : t + 1]
        step = advance(
            x[:, :, t].t(), state, weights, kind, norm=norm, seen=seen, cell_norm=cell_norm,
            real=None if cell_norm is None else cell_norm.real[t],
        )  # fmt: skip
        state = step.state
        states.append(state.hidden)
        means.append(step.mean)
        variances.append(step.variance)
        cell_means.append(step.cell_mean)
        cell_variances.append(step.cell_variance)
    return Result(
        states=torch.stack(states).permute(2, 1, 0),
        mean=_stack(means),
        variance=_stack(variances),
        cell_mean=_stack(cell_means),
        cell_variance=_stack(cell_variances),
    )


class Step(NamedTuple):
    """State after one step, and its statistics as in `Result`."""

    state: State
    mean: Tensor | None
    variance: Tensor | None
    cell_mean: Tensor | None
    cell_variance: Tensor | None


def advance(
    x: Tensor,
    state: State,
    weights: Weights,
    kind: Kind,
    *,
    norm: Norm | None = None,
    seen: Tensor | None = None,
    cell_norm: CellNorm | None = None,
    real: Tensor | None = None,
) -> Step:
    """Take one step.

    Args:
        x: Input (C, B).
        state: State before the step.
        weights: Weights of the layer.
        kind: Options of the loop.
        norm: Norm of the memory.
        seen: (n, B), the rows of `norm.seen` in the window.
        cell_norm: Norms of the step.
        real: (B), the row of `cell_norm.real`.
    """
    h, c, before = state
    ones = torch.ones_like(h[:1])
    memory = (*before, weights.memory @ torch.cat([c, ones]))
    gates, query = (weights.inputs @ torch.cat([x, h, ones])).split([4 * weights.hidden, weights.hidden])
    if weights.query is not None:
        query = F.elu(query) * weights.query.unsqueeze(1)
    arguments = (weights, kind, norm, seen, query, *memory)
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        attended, mean, variance = checkpoint(
            _attend_to_window, *arguments, use_reentrant=False, preserve_rng_state=False
        )
    else:
        attended, mean, variance = _attend_to_window(*arguments)
    statistics: list[tuple[Tensor, Tensor]] = []

    def normalise(y: Tensor, index: int) -> Tensor:
        if weights.affine is not None:
            scale, shift = weights.affine[index].unsqueeze(2)
            affine: Tensor = y * scale + shift
            return affine
        if cell_norm is None:
            return y
        assert real is not None
        weight_of_rows = real / real.sum().clamp(min=1)
        mean = (weight_of_rows * y).sum(1, keepdim=True)
        variance = (weight_of_rows * (y - mean).square()).sum(1, keepdim=True)
        statistics.append((mean.detach().squeeze(1), variance.detach().squeeze(1)))
        y = (y - mean) * (variance + cell_norm.eps).rsqrt()
        return y * cell_norm.weight[index].unsqueeze(1) + cell_norm.bias[index].unsqueeze(1)

    if weights.output is not None:
        attended = F.elu(weights.output @ torch.cat([attended, ones]))
    o, i, f, g = (gates + weights.attention @ normalise(attended, 0)).chunk(4)
    c = normalise(f.sigmoid() * c + i.sigmoid() * g.tanh(), 1)
    h = normalise(o.sigmoid() * (F.elu(c) if kind.elu else c.tanh()), 2)
    cells = map(torch.stack, zip(*statistics, strict=True)) if statistics else (None, None)
    return Step(State(h, c, memory[1 - kind.window :] if kind.window > 1 else ()), mean, variance, *cells)


def _attend_to_window(
    weights: Weights, kind: Kind, norm: Norm | None, seen: Tensor | None, query: Tensor, *states: Tensor
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the attention's result over the window's memory, and the statistics of that memory."""
    memory = torch.stack(states)  # (n, 2H, B)
    if weights.offsets is not None:
        memory = memory + weights.offsets[-len(memory) :].unsqueeze(2)
    if kind.activation:
        memory = F.elu(memory)
    if norm is None:
        return attend(query, memory, kind.heads), None, None
    assert seen is not None
    seen = seen.unsqueeze(1)  # (n, 1, B)
    weight_of_states = seen / seen.sum().clamp(min=1)
    mean = (weight_of_states * memory).sum((0, 2), keepdim=True)
    variance = (weight_of_states * (memory - mean).square()).sum((0, 2), keepdim=True)
    memory = (memory - mean) * (variance + norm.eps).rsqrt() * norm.weight.unsqueeze(1)
    memory = memory + F.pad(norm.bias, (weights.hidden, 0)).unsqueeze(1)
    return attend(query, memory, kind.heads), mean.detach().flatten(), variance.detach().flatten()


def _stack(values: Sequence[Tensor | None]) -> Tensor | None:
    present = [value for value in values if value is not None]
    return torch.stack(present) if present else None

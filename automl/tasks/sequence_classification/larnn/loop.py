"""The loop over time of a LARNN layer, as its equations are written.

For t = 0 .. T - 1, with h_0 = c_0 = 0 and the memory m_j = memory (c_j, 1) of each state c_j:

    o, i, f, g, q = inputs (x_t, h_t, 1)
    a = sum over j of softmax_j(q . keys of m_j) values of m_j   over the `window` latest states c_j, j <= t
    o, i, f, g += attention a
    c_t+1 = sigmoid(f) c_t + sigmoid(i) tanh(g)
    h_t+1 = sigmoid(o) elu(c_t+1)                              or tanh

Optionally q passes an ELU, a passes a linear map and an ELU, and a, c and h pass a batch norm each.

`run` computes this step by step with torch's operations, and `run_scan` for an export. The backward pass of
`run` computes the attention to each window again, so that the windows of all steps are not kept. Features
come before the batch, (H, B): operations split or sum the features, in rows of B neighbours, of which a
processor handles many at once.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from backbones.torch_internals import scan


class Weights(NamedTuple):
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


class Norm(NamedTuple):
    """Batch norm for training: of the memory in each window, or of attention's result, cell and hidden state.

    Attributes:
        weight: Scale, (2H) of the memory or (3, H).
        bias: Shift, (H) of the values or (3, H).
        valid: (T, B), 1 where a state or a step counts, 0 where it is padding.
        eps: Added to the variance.
    """

    weight: Tensor
    bias: Tensor
    valid: Tensor
    eps: float


class Kind(NamedTuple):
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


class Statistics(NamedTuple):
    """Statistics of the norms in all steps, or in one. They have no gradient, and are None without a norm.

    Attributes:
        mean: (T, 2H), of the memory in the windows.
        variance: (T, 2H), as `mean`.
        cell_mean: (T, 3, H), of the attention's result, of the cell and of the hidden state.
        cell_variance: (T, 3, H), as `cell_mean`.
    """

    mean: Tensor | None = None
    variance: Tensor | None = None
    cell_mean: Tensor | None = None
    cell_variance: Tensor | None = None


class LARNNState(NamedTuple):
    """State that a step passes to the next one. Within the loop, features come before the batch.

    Attributes:
        hidden: Hidden state `(B, hidden)`.
        cell: Cell state `(B, hidden)`.
        memory: Keys and values of earlier cells, each `(B, 2 hidden)`. The latest is last. `window - 1` at
            most.
    """

    hidden: Tensor
    cell: Tensor
    memory: tuple[Tensor, ...] = ()

    def detach(self) -> "LARNNState":
        """Return the same state without its gradient, for truncated back-propagation through time."""
        return LARNNState(self.hidden.detach(), self.cell.detach(), tuple(m.detach() for m in self.memory))

    def t(self) -> "LARNNState":
        """Return the state with its axes swapped."""
        return LARNNState(self.hidden.t(), self.cell.t(), tuple(m.t() for m in self.memory))


def attend(query: Tensor, memory: Tensor, heads: int) -> Tensor:
    """Attend with a query (H, B) to the memory (n, 2H, B). Return the result (H, B)."""
    keys, values = memory.unflatten(1, (2, heads, -1)).unbind(1)  # (n, heads, d, B)
    p = (keys * query.unflatten(0, (heads, -1))).sum(2).softmax(0)  # (n, heads, B)
    result: Tensor = (values * p.unsqueeze(2)).sum(0).flatten(0, 1)
    return result


def run(
    x: Tensor, weights: Weights, kind: Kind, norm: Norm | None = None, cell_norm: Norm | None = None
) -> tuple[Tensor, Statistics]:
    """Run one step after the other on `x`, (B, C, T). Return the states (B, H, T) and the statistics."""
    zeros = x.new_zeros(weights.hidden, x.shape[0])
    state = LARNNState(zeros, zeros)
    states, statistics = [], []
    for t in range(x.shape[2]):
        seen = slice(max(0, t + 1 - kind.window), t + 1)
        state, step = advance(
            x[:, :, t].t(),
            state,
            weights,
            kind,
            None if norm is None else norm._replace(valid=norm.valid[seen]),
            None if cell_norm is None else cell_norm._replace(valid=cell_norm.valid[t]),
        )
        states.append(state.hidden)
        statistics.append(step)
    return torch.stack(states).permute(2, 1, 0), Statistics(*map(_stack, zip(*statistics, strict=True)))


def advance(
    x: Tensor, state: LARNNState, weights: Weights, kind: Kind, norm: Norm | None, cell_norm: Norm | None
) -> tuple[LARNNState, Statistics]:
    """Take one step. Return the state after it, and its statistics.

    Args:
        x: Input (C, B).
        state: State before the step.
        weights: Weights of the layer.
        kind: Options of the loop.
        norm: Norm of the memory. `valid` (n, B) is that of the states in the window.
        cell_norm: Norms of the step. `valid` (B) is that of the step.
    """
    h, c, before = state
    ones = torch.ones_like(h[:1])
    memory = (*before, weights.memory @ torch.cat([c, ones]))
    gates, query = (weights.inputs @ torch.cat([x, h, ones])).split([4 * weights.hidden, weights.hidden])
    if weights.query is not None:
        query = F.elu(query) * weights.query.unsqueeze(1)
    arguments = (weights, kind, norm, query, *memory)
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
        weight_of_rows = cell_norm.valid / cell_norm.valid.sum().clamp(min=1)
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
    state = LARNNState(h, c, memory[1 - kind.window :] if kind.window > 1 else ())
    return state, Statistics(mean, variance, *cells)


def _attend_to_window(
    weights: Weights, kind: Kind, norm: Norm | None, query: Tensor, *states: Tensor
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the attention's result over the window's memory, and the statistics of that memory."""
    memory = torch.stack(states)  # (n, 2H, B)
    if weights.offsets is not None:
        memory = memory + weights.offsets[-len(memory) :].unsqueeze(2)
    if kind.activation:
        memory = F.elu(memory)
    if norm is None:
        return attend(query, memory, kind.heads), None, None
    seen = norm.valid.unsqueeze(1)  # (n, 1, B)
    weight_of_states = seen / seen.sum().clamp(min=1)
    mean = (weight_of_states * memory).sum((0, 2), keepdim=True)
    variance = (weight_of_states * (memory - mean).square()).sum((0, 2), keepdim=True)
    memory = (memory - mean) * (variance + norm.eps).rsqrt() * norm.weight.unsqueeze(1)
    memory = memory + F.pad(norm.bias, (weights.hidden, 0)).unsqueeze(1)
    return attend(query, memory, kind.heads), mean.detach().flatten(), variance.detach().flatten()


def _stack(values: Sequence[Tensor | None]) -> Tensor | None:
    present = [value for value in values if value is not None]
    return torch.stack(present) if present else None


Carry = tuple[Tensor, Tensor, Tensor, Tensor]


def run_scan(x: Tensor, weights: Weights, kind: Kind) -> Tensor:
    """Return the states, (B, H, T), of `x`, (B, C, T), by one operation, `scan`, for export.

    An exporter writes every step of a loop in Python. For three layers and 128 steps, torch.export takes
    minutes and the exporter to ONNX does not finish. `scan` writes one step. It computes the same as `run` in
    evaluation. Its window is always full, and states that do not exist yet have a score of minus infinity.

    `scan` accepts only tensors, so a step does not read the batch size but infers it (-1).
    """
    H, window, heads = weights.hidden, kind.window, kind.heads
    attention, offsets = weights.attention, weights.offsets
    # `scan` rejects tensors of which one is a view of another.
    inputs, inputs_bias = (w.clone() for w in weights.inputs.tensor_split([-1], 1))
    memory, memory_bias = (w.clone() for w in weights.memory.tensor_split([-1], 1))
    scale = None if weights.query is None else weights.query.unsqueeze(1).clone()
    output = None if weights.output is None else [w.clone() for w in weights.output.tensor_split([-1], 1)]
    affine = (
        None if weights.affine is None else [w.unsqueeze(1).clone() for w in weights.affine.flatten(0, 1)]
    )

    def normalise(y: Tensor, index: int) -> Tensor:
        return y if affine is None else y * affine[2 * index] + affine[2 * index + 1]

    def step(carry: Carry, x_t: Tensor) -> tuple[Carry, Tensor]:
        h, c, before, absent = carry
        now = torch.addmm(memory_bias, memory, c)  # (2H, B)
        states = torch.cat([before[1:], now.unsqueeze(0)])  # (window, 2H, B)
        absent = torch.cat([absent[1:], torch.zeros_like(absent[:1])])
        seen = states if offsets is None else states + offsets.unsqueeze(2)
        if kind.activation:
            seen = F.elu(seen)
        gates, query = torch.addmm(inputs_bias, inputs, torch.cat([x_t, h])).split([4 * H, H])
        if scale is not None:
            query = F.elu(query) * scale
        keys, values = seen.view(window, 2, heads, H // heads, -1).unbind(1)
        scores = (keys * query.view(heads, H // heads, -1)).sum(2)  # (window, heads, B)
        p = (scores + absent).softmax(0)
        attended = (values * p.unsqueeze(2)).sum(0).view(H, -1)
        if output is not None:
            attended = F.elu(torch.addmm(output[1], output[0], attended))
        o, i, f, g = (gates + attention @ normalise(attended, 0)).chunk(4)
        c = normalise(f.sigmoid() * c + i.sigmoid() * g.tanh(), 1)
        h = normalise(o.sigmoid() * (F.elu(c) if kind.elu else c.tanh()), 2)
        return (h, c, states, absent), h.clone()

    B = x.shape[0]
    start = (
        x.new_zeros(H, B),
        x.new_zeros(H, B),
        x.new_zeros(window, 2 * H, B),
        x.new_full((window, 1, 1), float("-inf")),
    )
    states: Tensor = scan(step, start, x.permute(2, 1, 0))[1]
    return states.permute(2, 1, 0)

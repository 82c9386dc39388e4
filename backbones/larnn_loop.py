"""The loop over time of a LARNN layer, twice: as it reads, and as it is quick.

For t = 0 .. T - 1, with h_0 = c_0 = 0 and the memory m_j = memory c_j + bias of each state c_j:

    o, i, f, g, q = input x_t + input_bias + hidden h_t
    a = sum over j of softmax_j(q . keys of m_j) values of m_j   over the `window` latest states c_j, j <= t
    o, i, f, g += attention a
    c_t+1 = sigmoid(f) c_t + sigmoid(i) tanh(g)
    h_t+1 = sigmoid(o) elu(c_t+1)                              or tanh

`steps` runs this with torch's operations, one after the other: it is what is exported, and what the quick one is
tested against. `run` computes the same. What makes it quick: nothing for autograd to record; the input's part is
one product for all steps; the memory of a state is computed once, when it is written, not again at each of the
`window` steps that look at it, and lies where the next steps find their window as one slice; the backward pass is
written out, and the gradient of each weight is one product after the loop. The softmax, `window` x heads values a
step, is computed again in the backward pass and not kept. Features come before the batch, (H, B): what is split
or summed is features, in rows of B neighbours, of which a processor takes many at a time.

A norm of keys and values is the same linear map for all states of a window. So it is not applied to them: its
scale goes to the query, where a shift of all keys has no effect, and to what the attention returns. The
statistics of a window are sums over its states of sums that are taken once for each.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


@dataclass(frozen=True, kw_only=True)
class Weights:
    """What one layer of H units multiplies by, for an input of C channels.

    input: (5H, C) and input_bias: (5H), to the gates and the query. hidden: (5H, H). attention: (4H, H).
    memory: (2H, H) and bias: (2H), to keys and values. places: (window, 2H), what its place in the window, the
    latest last, adds to a state's memory; or None.
    """

    input: Tensor
    input_bias: Tensor
    hidden: Tensor
    attention: Tensor
    memory: Tensor
    bias: Tensor
    places: Tensor | None


@dataclass(frozen=True, kw_only=True)
class Norm:
    """A batch norm of the memory in each window, as in training.

    weight: (2H). bias: (H), of the values. seen: (T, B), 1 where a state counts, 0 where it is padding.
    """

    weight: Tensor
    bias: Tensor
    seen: Tensor
    eps: float


@dataclass(frozen=True, kw_only=True)
class Kind:
    """elu: on the cell, in the place of tanh. activation: elu on keys and values."""

    heads: int
    window: int
    elu: bool
    activation: bool


@dataclass(frozen=True, kw_only=True)
class Result:
    """states: (B, H, T). mean, variance: (T, 2H), of the memory in the windows, where normed; no gradient."""

    states: Tensor
    mean: Tensor | None = None
    variance: Tensor | None = None


def attend(query: Tensor, memory: Tensor, heads: int) -> Tensor:
    """(H, B) and (n, 2H, B) -> (H, B)."""
    keys, values = memory.unflatten(1, (2, heads, -1)).unbind(1)  # (n, heads, d, B)
    p = (keys * query.unflatten(0, (heads, -1))).sum(2).softmax(0)  # (n, heads, B)
    return (values * p.unsqueeze(2)).sum(0).flatten(0, 1)


def steps(x: Tensor, weights: Weights, kind: Kind, norm: Norm | None = None) -> Result:
    """One step after the other. x: (B, C, T)."""
    H = weights.hidden.shape[1]
    inputs = F.linear(x.permute(2, 0, 1), weights.input, weights.input_bias).transpose(1, 2)  # (T, 5H, B)
    h = c = x.new_zeros(H, x.shape[0])
    memories, states, means, variances = [], [], [], []
    for t in range(x.shape[2]):
        memories.append(weights.memory @ c + weights.bias.unsqueeze(1))
        memory = torch.stack(memories[-kind.window :])  # (n, 2H, B)
        if weights.places is not None:
            memory = memory + weights.places[-len(memory) :].unsqueeze(2)
        if kind.activation:
            memory = F.elu(memory)
        if norm is not None:
            seen = norm.seen[t + 1 - len(memory) : t + 1].unsqueeze(1)  # (n, 1, B)
            share = seen / seen.sum().clamp(min=1)
            mean = (share * memory).sum((0, 2), keepdim=True)
            variance = (share * (memory - mean).square()).sum((0, 2), keepdim=True)
            memory = (memory - mean) * (variance + norm.eps).rsqrt() * norm.weight.unsqueeze(1)
            memory = memory + F.pad(norm.bias, (H, 0)).unsqueeze(1)
            means.append(mean.detach().flatten())
            variances.append(variance.detach().flatten())
        gates, query = (inputs[t] + weights.hidden @ h).split([4 * H, H])
        o, i, f, g = (gates + weights.attention @ attend(query, memory, kind.heads)).chunk(4)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * (F.elu(c) if kind.elu else c.tanh())
        states.append(h)
    result = torch.stack(states).permute(2, 1, 0)
    if norm is None:
        return Result(states=result)
    return Result(states=result, mean=torch.stack(means), variance=torch.stack(variances))


def is_quick(weights: Weights, kind: Kind) -> bool:
    """Whether `run` can compute it: not where a state has another activation at each place in the window."""
    return weights.places is None or not kind.activation


def run(x: Tensor, weights: Weights, kind: Kind, norm: Norm | None = None) -> Result:
    """What `steps` computes, quickly, where `is_quick`."""
    assert is_quick(weights, kind)
    w = weights
    x = x.permute(2, 1, 0).contiguous()  # (T, C, B)
    arguments = (x, w.input, w.input_bias, w.hidden, w.attention, w.memory, w.bias, w.places)
    if norm is None:
        return Result(states=_Run.apply(*arguments, None, None, None, 0.0, kind).permute(2, 1, 0))
    states, mean, variance = _Run.apply(*arguments, norm.weight, norm.bias, norm.seen, norm.eps, kind)
    return Result(states=states.permute(2, 1, 0), mean=mean, variance=variance)


class _Run(torch.autograd.Function):
    """(T, C, B) -> (T, H, B), and the statistics where normed."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        input: Tensor,
        input_bias: Tensor,
        hidden: Tensor,
        attention: Tensor,
        memory: Tensor,
        bias: Tensor,
        places: Tensor | None,
        scale: Tensor | None,
        shift: Tensor | None,
        seen: Tensor | None,
        eps: float,
        kind: Kind,
    ) -> Any:
        T, _, B = x.shape
        H = hidden.shape[1]
        z = torch.baddbmm(input_bias.unsqueeze(1), input.expand(T, -1, -1), x)  # (T, 5H, B): gates, query
        c = x.new_zeros(T + 1, H, B)
        h, a, m = (x.new_empty(T, rows, B) for rows in (H, H, 2 * H))
        normed = None if seen is None else _Windows(m, seen, kind.window, eps)
        column = bias.unsqueeze(1)
        for t in range(T):
            gates, query = z[t].split([4 * H, H])
            torch.addmm(column, memory, c[t], out=m[t])
            if kind.activation:
                F.elu_(m[t])
            if t:
                z[t].addmm_(hidden, h[t - 1])
            there = _window(m, places, t, kind.window)
            if normed is None:
                found = a[t]
                found.copy_(attend(query, there, kind.heads))
            else:
                normed.look(t)
                by = (normed.inverse[t] * scale).unsqueeze(1)
                torch.sub(attend(query * by[:H], there, kind.heads), normed.mean[t, H:, None], out=a[t])
                found = torch.addcmul(shift.unsqueeze(1), a[t], by[H:])
            gates.addmm_(attention, found)
            gates[: 3 * H].sigmoid_()
            gates[3 * H :].tanh_()
            o, i, f, g = gates.chunk(4)
            torch.mul(f, c[t], out=c[t + 1]).addcmul_(i, g)
            torch.mul(o, F.elu(c[t + 1]) if kind.elu else c[t + 1].tanh(), out=h[t])
        ctx.kind = kind
        kept = (None,) * 4 if normed is None else (normed.mean, normed.inverse, normed.share, seen)
        ctx.save_for_backward(
            x, z, c, h, a, m, input, hidden, attention, memory, places, scale, shift, *kept
        )
        if normed is None:
            return h
        mean, variance = normed.mean.clone(), normed.inverse.pow(-2) - eps
        ctx.mark_non_differentiable(mean, variance)
        return h, mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        x, z, c, h, a, m, input, hidden, attention, memory, places, scale, shift, *kept = ctx.saved_tensors
        mean, inverse, share, seen = kept
        kind: Kind = ctx.kind
        T, H, B = h.shape
        heads, k = kind.heads, kind.window
        o, i, f, g = z[:, : 4 * H].chunk(4, 1)
        if kind.elu:
            out = F.elu(c[1:])
            slope = torch.where(out > 0, 1.0, out + 1).mul_(o)
        else:
            out = c[1:].tanh()
            slope = (1 - out * out).mul_(o)
        # What dh and dc are multiplied by to become the gradients of the gates before their sigmoids.
        by_dh = out * o * (1 - o)
        by_dc = torch.stack([g * i * (1 - i), c[:-1] * f * (1 - f), i * (1 - g * g)], 1)  # (T, 3, H, B)
        dz = torch.empty_like(z)
        dm = torch.zeros_like(m)
        dplaces = None if places is None else torch.zeros_like(places)
        dfound = torch.empty_like(a)
        dby = None if mean is None else torch.empty_like(mean)
        dsums = None if mean is None else mean.new_zeros(T, 2, 2 * H)
        dh, dc = torch.zeros_like(h[0]), torch.zeros_like(h[0])
        hidden_t, attention_t, memory_t = hidden.t(), attention.t(), memory.t()
        for t in reversed(range(T)):
            dh += grad[t]
            dc.addcmul_(dh, slope[t])
            dgates, dquery = dz[t].split([4 * H, H])
            torch.mul(by_dh[t], dh, out=dgates[:H])
            torch.mul(by_dc[t], dc, out=dgates[H:].unflatten(0, (3, H)))
            torch.mm(attention_t, dgates, out=dfound[t])
            da, query = dfound[t], z[t, 4 * H :]
            if mean is not None:
                by = (inverse[t] * scale).unsqueeze(1)
                da, query = da * by[H:], query * by[:H]
            # The attention again, and its gradients.
            first = max(0, t + 1 - k)
            keys, values = _window(m, places, t, k).unflatten(1, (2, heads, -1)).unbind(1)  # (n, heads, d, B)
            query, da = query.view(heads, -1, B), da.view(heads, -1, B)
            p = (keys * query).sum(2).softmax(0)  # (n, heads, B)
            ds = torch._softmax_backward_data((values * da).sum(2), p, 0, p.dtype)
            torch.sum(keys * ds.unsqueeze(2), 0, out=dquery.view(heads, -1, B))
            dkeys, dvalues = dm[first : t + 1].unflatten(1, (2, heads, -1)).unbind(1)
            dkeys.addcmul_(ds.unsqueeze(2), query)
            dvalues.addcmul_(p.unsqueeze(2), da)
            if dplaces is not None:
                there = dplaces[first - t - 1 :].unflatten(1, (2, heads, -1))
                there[:, 0] += torch.einsum("nhb,hdb->nhd", ds, query)
                there[:, 1] += torch.einsum("nhb,hdb->nhd", p, da)
            if mean is not None:
                torch.sum(dquery * z[t, 4 * H :], 1, out=dby[t, :H])
                torch.sum(dfound[t] * a[t], 1, out=dby[t, H:])
                dquery *= by[:H]
                dvariance = -0.5 * dby[t] * scale * inverse[t] ** 3
                dmean = -2 * mean[t] * dvariance
                dmean[H:] -= da.flatten(0, 1).sum(1)
                dsums[first : t + 1] += torch.stack([dmean, dvariance]) * share[t]
                dm[t] += seen[t] * (dsums[t, 0, :, None] + 2 * m[t] * dsums[t, 1, :, None])
            if kind.activation:
                dm[t] *= torch.where(m[t] > 0, 1.0, m[t] + 1)
            torch.mm(hidden_t, dz[t], out=dh)
            dc.mul_(f[t]).addmm_(memory_t, dm[t])
        flat = _flat(dz)
        dgates = flat[:, : 4 * H]
        found, dscale, dshift = a, None, None
        if mean is not None:
            found = torch.addcmul(shift.unsqueeze(1), a, (inverse * scale)[:, H:].unsqueeze(2))
            dscale, dshift = (dby * inverse).sum(0), dfound.sum((0, 2))
        flat_dm = _flat(dm)
        return (
            torch.matmul(input.t(), dz) if ctx.needs_input_grad[0] else None,
            flat.t() @ _flat(x),
            flat.sum(0),
            flat[B:].t() @ _flat(h[:-1]),
            dgates.t() @ _flat(found),
            flat_dm.t() @ _flat(c[:-1]),
            flat_dm.sum(0),
            dplaces,
            dscale,
            dshift,
            None,
            None,
            None,
        )


class _Windows:
    """Mean and inverse deviation of the memory `m`, (T, 2H, B), in the window of each step, as it is written."""

    def __init__(self, m: Tensor, seen: Tensor, window: int, eps: float) -> None:
        self.m, self.seen, self.window, self.eps = m, seen, window, eps
        self.sums = m.new_empty(len(m), 2, m.shape[1])  # of each state: of its values and of their squares
        self.mean, self.inverse = m.new_empty(len(m), m.shape[1]), m.new_empty(len(m), m.shape[1])
        count = F.pad(seen.sum(1).cumsum(0), (window, 0))
        self.share = 1 / (count[window:] - count[:-window]).clamp(min=1)  # (T)

    def look(self, t: int) -> None:
        now = self.m[t]
        torch.mv(now, self.seen[t], out=self.sums[t, 0])
        torch.mv(now * now, self.seen[t], out=self.sums[t, 1])
        mean, square = (self.sums[max(0, t + 1 - self.window) : t + 1].sum(0) * self.share[t]).unbind(0)
        self.mean[t] = mean
        torch.addcmul(square, mean, mean, value=-1, out=self.inverse[t])
        self.inverse[t].clamp_(min=0).add_(self.eps).rsqrt_()


def _window(memory: Tensor, places: Tensor | None, t: int, window: int) -> Tensor:
    """The memory that step `t` looks at, of the states up to its own, with what their places add."""
    there = memory[max(0, t + 1 - window) : t + 1]
    return there if places is None else there + places[-len(there) :].unsqueeze(2)


def _flat(x: Tensor) -> Tensor:
    """(T, F, B) -> (T B, F), in the order that a product over all steps reads it."""
    return x.transpose(1, 2).reshape(-1, x.shape[1])

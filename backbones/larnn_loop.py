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
written out. The softmax, `window` x heads values a
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
    """(T, C, B) -> (T, H, B), and the statistics where normed.

    All that one step computes stays in a processor's cache: so the backward pass has no arrays of all steps
    beside the memory's gradient, and adds up those of the weights as it goes.
    """

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
        c, h = x.new_zeros(T + 1, H, B), x.new_zeros(T + 1, H, B)
        a, m = x.new_empty(T, H, B), x.new_empty(T, 2 * H, B)
        look = _Look(m, places, kind)
        normed = None if seen is None else _Windows(m, seen, kind.window, eps)
        column = bias.unsqueeze(1)
        for t, (now, found, c_t, c_next, h_t, h_next, m_t) in enumerate(
            zip(z, a, c[:-1], c[1:], h[:-1], h[1:], m, strict=True)
        ):
            gates, query = now[: 4 * H], now[4 * H :]
            torch.addmm(column, memory, c_t, out=m_t)
            if kind.activation:
                F.elu_(m_t)
            now.addmm_(hidden, h_t)
            if normed is None:
                look.attend(t, query, found)
            else:
                normed.write(t)
                by = (normed.inverse[t] * scale).unsqueeze(1)
                look.attend(t, query * by[:H], found)
                found -= normed.mean[t, H:, None]
                found = torch.addcmul(shift.unsqueeze(1), found, by[H:])
            gates.addmm_(attention, found)
            gates[: 3 * H].sigmoid_()
            gates[3 * H :].tanh_()
            o, i, f, g = gates.chunk(4)
            torch.mul(f, c_t, out=c_next).addcmul_(i, g)
            torch.mul(o, F.elu(c_next) if kind.elu else c_next.tanh(), out=h_next)
        ctx.kind = kind
        statistics = (None,) * 4 if normed is None else (normed.mean, normed.inverse, normed.share, seen)
        weights = (input, hidden, attention, memory, places, scale, shift)
        ctx.save_for_backward(x, z, c, h, a, m, *weights, *statistics)
        if normed is None:
            return h[1:]
        mean, variance = normed.mean.clone(), normed.inverse.pow(-2) - eps
        ctx.mark_non_differentiable(mean, variance)
        return h[1:], mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        x, z, c, h, a, m, *saved = ctx.saved_tensors
        input, hidden, attention, memory, places, scale, shift, mean, inverse, share, seen = saved
        kind: Kind = ctx.kind
        T, H, B = a.shape
        dm, dplaces = torch.zeros_like(m), None if places is None else torch.zeros_like(places).unsqueeze(2)
        look = _Look(m, places, kind)
        look.gradients_of(dm, dplaces)
        dx = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        dinput, dhidden, dattention, dmemory = map(torch.zeros_like, (input, hidden, attention, memory))
        dz, dz_sum, dh, dc = z.new_empty(5 * H, B), z.new_zeros(5 * H, B), z.new_zeros(H, B), z.new_zeros(H, B)
        dgates, dquery, da = dz[: 4 * H], dz[4 * H :], z.new_empty(H, B)
        do, di, df, dg = dgates.chunk(4)
        if mean is not None:
            dscale, dshift = torch.zeros_like(scale), torch.zeros_like(shift)
            dsums = mean.new_zeros(T, 2, 2 * H)
        for t in reversed(range(T)):
            now, c_t, c_next, m_t, dm_t = z[t], c[t], c[t + 1], m[t], dm[t]
            o, i, f, g = now[: 4 * H].chunk(4)
            query, found = now[4 * H :], a[t]
            dh += grad[t]
            # h = o elu(c), c_next = f c + i g
            if kind.elu:
                out = F.elu(c_next)
                dc += torch.ops.aten.elu_backward(dh * o, 1.0, 1.0, 1.0, True, out)
            else:
                out = c_next.tanh()
                dc += torch.ops.aten.tanh_backward(dh * o, out)
            torch.mul(dh, out, out=do)
            torch.mul(dc, g, out=di)
            torch.mul(dc, c_t, out=df)
            torch.mul(dc, i, out=dg)
            inner = dgates[: 3 * H]
            torch.ops.aten.sigmoid_backward.grad_input(inner, now[: 3 * H], grad_input=inner)
            torch.ops.aten.tanh_backward.grad_input(dg, g, grad_input=dg)
            torch.mm(attention.t(), dgates, out=da)
            if mean is None:
                look.backward(t, query, da, dquery)
            else:
                by = (inverse[t] * scale).unsqueeze(1)
                dshift += da.sum(1)
                dby = torch.cat([query, da * found]).view(2, H, B)
                found = torch.addcmul(shift.unsqueeze(1), found, by[H:])
                da *= by[H:]
                look.backward(t, query * by[:H], da, dquery)
                dby[0] *= dquery
                dquery *= by[:H]
                dby = dby.sum(2).flatten()
                dscale += dby * inverse[t]
                dvariance = -0.5 * dby * scale * inverse[t] ** 3
                dmean = -2 * mean[t] * dvariance
                dmean[H:] -= da.sum(1)
                dsums[max(0, t + 1 - kind.window) : t + 1] += torch.stack([dmean, dvariance]) * share[t]
                dm_t += seen[t] * (dsums[t, 0, :, None] + 2 * m_t * dsums[t, 1, :, None])
            if kind.activation:
                torch.ops.aten.elu_backward.grad_input(dm_t, 1.0, 1.0, 1.0, True, m_t, grad_input=dm_t)
            dinput.addmm_(dz, x[t].t())
            dhidden.addmm_(dz, h[t].t())
            dattention.addmm_(dgates, found.t())
            dmemory.addmm_(dm_t, c_t.t())
            dz_sum += dz
            if dx is not None:
                torch.mm(input.t(), dz, out=dx[t])
            torch.mm(hidden.t(), dz, out=dh)
            dc.mul_(f).addmm_(memory.t(), dm_t)
        weights = (dinput, dz_sum.sum(1), dhidden, dattention, dmemory, dm.sum((0, 2)))
        norm = (None, None) if mean is None else (dscale, dshift)
        return dx, *weights, None if dplaces is None else dplaces.squeeze(2), *norm, None, None, None


class _Look:
    """The attention of one step after the other to the memory `m`, (T, 2H, B), as far as it is written."""

    def __init__(self, m: Tensor, places: Tensor | None, kind: Kind) -> None:
        self.window, self.shape = kind.window, (kind.heads, -1, m.shape[2])
        self.keys, self.values = self._parts(m)
        self.places = None if places is None else self._parts(places.unsqueeze(2))
        n = min(kind.window, len(m))
        self.products = m.new_empty(n, *self.keys.shape[1:])
        self.scores = m.new_empty(n, kind.heads, m.shape[2])

    def gradients_of(self, m: Tensor, places: Tensor | None) -> None:
        """Where `backward` adds: (T, 2H, B) and (window, 2H, 1)."""
        self.dkeys, self.dvalues = self._parts(m)
        self.dplaces = None if places is None else self._parts(places)

    def attend(self, t: int, query: Tensor, out: Tensor) -> None:
        """Both (H, B)."""
        keys, values = self._window(t)
        p = self._softmax(keys, query.view(self.shape))
        products = torch.mul(values, p.unsqueeze(2), out=self.products[: len(p)])
        torch.sum(products, 0, out=out.view(self.shape))

    def backward(self, t: int, query: Tensor, dout: Tensor, dquery: Tensor) -> None:
        """Writes the gradient of the query, and adds those of the memory and the places."""
        keys, values = self._window(t)
        query, dout = query.view(self.shape), dout.view(self.shape)
        p = self._softmax(keys, query)  # (n, heads, B)
        products = self.products[: len(p)]
        dp = torch.sum(torch.mul(values, dout, out=products), 2, out=self.scores[: len(p)])
        ds = torch._softmax_backward_data(dp, p, 0, p.dtype)
        torch.mul(keys, ds.unsqueeze(2), out=products)
        torch.sum(products, 0, out=dquery.view(self.shape))
        here = slice(t + 1 - len(p), t + 1)
        self.dkeys[here].addcmul_(ds.unsqueeze(2), query)
        self.dvalues[here].addcmul_(p.unsqueeze(2), dout)
        if self.dplaces is not None:
            for gradient, by, what in zip(self.dplaces, (ds, p), (query, dout), strict=True):
                gradient[-len(p) :] += torch.einsum("nhb,hdb->nhd", by, what).unsqueeze(-1)

    def _softmax(self, keys: Tensor, query: Tensor) -> Tensor:
        n = len(keys)
        products = torch.mul(keys, query, out=self.products[:n])
        return torch.sum(products, 2, out=self.scores[:n]).softmax(0)

    def _window(self, t: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the states up to that of step `t`, each (n, heads, d, B)."""
        first = max(0, t + 1 - self.window)
        keys, values = self.keys[first : t + 1], self.values[first : t + 1]
        if self.places is None:
            return keys, values
        n = len(keys)
        return keys + self.places[0][-n:], values + self.places[1][-n:]

    def _parts(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        heads = self.shape[0]
        keys, values = memory.unflatten(1, (2, heads, -1)).unbind(1)
        return keys, values


class _Windows:
    """Mean and inverse deviation of the memory `m`, (T, 2H, B), in the window of each step, as it is written."""

    def __init__(self, m: Tensor, seen: Tensor, window: int, eps: float) -> None:
        self.m, self.seen, self.window, self.eps = m, seen, window, eps
        self.sums = m.new_empty(len(m), 2, m.shape[1])  # of each state: of its values and of their squares
        self.mean, self.inverse = m.new_empty(len(m), m.shape[1]), m.new_empty(len(m), m.shape[1])
        count = F.pad(seen.sum(1).cumsum(0), (window, 0))
        self.share = 1 / (count[window:] - count[:-window]).clamp(min=1)  # (T)

    def write(self, t: int) -> None:
        now = self.m[t]
        torch.mv(now, self.seen[t], out=self.sums[t, 0])
        torch.mv(now * now, self.seen[t], out=self.sums[t, 1])
        mean, square = (self.sums[max(0, t + 1 - self.window) : t + 1].sum(0) * self.share[t]).unbind(0)
        self.mean[t] = mean
        torch.addcmul(square, mean, mean, value=-1, out=self.inverse[t])
        self.inverse[t].clamp_(min=0).add_(self.eps).rsqrt_()

"""The loop over time of a LARNN layer, twice: as it reads, and as it is quick.

For t = 0 .. T - 1, with h_0 = c_0 = 0 and the memory m_j = memory (c_j, 1) of each state c_j:

    o, i, f, g, q = inputs (x_t, h_t, 1)
    a = sum over j of softmax_j(q . keys of m_j) values of m_j   over the `window` latest states c_j, j <= t
    o, i, f, g += attention a
    c_t+1 = sigmoid(f) c_t + sigmoid(i) tanh(g)
    h_t+1 = sigmoid(o) elu(c_t+1)                              or tanh

Optionally q goes through an ELU, a through a linear map and an ELU, and a, c and h through a batch norm each.

`steps` runs this with torch's operations, one after the other: the other forms are tested against it. `run`
computes the same. What makes it quick: nothing for autograd to record; the memory of a state is computed
once, when it is written, not at each of the `window` steps that look at it, and lies where the next steps
find their window as one slice; the backward pass is written out. `steps` looks at a window again in its
backward pass, so that neither keeps windows of all steps. The softmax of `run`, `window` x heads values a
step, is computed again in the backward pass and not kept. Features come before the batch, (H, B): what is
split or summed is features, in rows of B neighbours, of which a processor takes many at once.

A norm of keys and values is the same linear map for all states of a window. So it is not applied to them: its
scale goes to the query, where a shift of all keys has no effect, and to what the attention returns. The
statistics of a window are sums over its states of sums that are taken once for each.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from backbones.torch_internals import softmax_backward

elu_backward = torch.ops.aten.elu_backward.grad_input
sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input
tanh_backward = torch.ops.aten.tanh_backward.grad_input


@dataclass(frozen=True, kw_only=True)
class Weights:
    """What one layer of H units multiplies by, for an input of C channels.

    inputs: (5H, C + H + 1), from input, hidden state and a one to the gates and the query.
    attention: (4H, H), from what was found to the gates. memory: (2H, H + 1), from a state and a one to
    its keys and values. places: (window, 2H), what its place in the window, the latest last, adds to them; or
    None.
    query: (H), which the query's ELU is multiplied by; None for a query without one. output: (H, H + 1), of
    what was found and a one, before its ELU; None for neither. affine: (3, 2, H), scale and shift of what was
    found, of the cell and of the hidden state, for evaluation with their norms; or None.
    """

    inputs: Tensor
    attention: Tensor
    memory: Tensor
    places: Tensor | None
    query: Tensor | None = None
    output: Tensor | None = None
    affine: Tensor | None = None

    @property
    def hidden(self) -> int:
        return self.attention.shape[1]


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
class CellNorm:
    """A batch norm each of what was found, of the cell and of the hidden state, for training.

    weight, bias: (3, H). real: (T, B), 1 where there is an input, 0 at padding.
    """

    weight: Tensor
    bias: Tensor
    real: Tensor
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
    """states: (B, H, T). The others have no gradient and are there where normed.

    mean, variance: (T, 2H), of the memory in the windows. cell_mean, cell_variance: (T, 3, H), of what a
    CellNorm norms.
    """

    states: Tensor
    mean: Tensor | None = None
    variance: Tensor | None = None
    cell_mean: Tensor | None = None
    cell_variance: Tensor | None = None


class State(NamedTuple):
    """What a step leaves to the next one.

    hidden, cell: (H, B). memory: of the cells before this one, the latest last, `window - 1` at most, each
    (2H, B).
    """

    hidden: Tensor
    cell: Tensor
    memory: tuple[Tensor, ...] = ()


def attend(query: Tensor, memory: Tensor, heads: int) -> Tensor:
    """(H, B) and (n, 2H, B) -> (H, B)."""
    keys, values = memory.unflatten(1, (2, heads, -1)).unbind(1)  # (n, heads, d, B)
    p = (keys * query.unflatten(0, (heads, -1))).sum(2).softmax(0)  # (n, heads, B)
    found: Tensor = (values * p.unsqueeze(2)).sum(0).flatten(0, 1)
    return found


def steps(
    x: Tensor, weights: Weights, kind: Kind, norm: Norm | None = None, cell_norm: CellNorm | None = None
) -> Result:
    """One step after the other. x: (B, C, T)."""
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
        mean=_stacked(means),
        variance=_stacked(variances),
        cell_mean=_stacked(cell_means),
        cell_variance=_stacked(cell_variances),
    )


class Step(NamedTuple):
    """A step's state, and its statistics as in Result but of one step."""

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
    """One step. x: (C, B). seen: (n, B), of a norm, as far as the window goes. real: (B), of a cell norm."""
    h, c, before = state
    one = torch.ones_like(h[:1])
    memory = (*before, weights.memory @ torch.cat([c, one]))
    gates, query = (weights.inputs @ torch.cat([x, h, one])).split([4 * weights.hidden, weights.hidden])
    if weights.query is not None:
        query = F.elu(query) * weights.query.unsqueeze(1)
    arguments = (weights, kind, norm, seen, query, *memory)
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        found, mean, variance = checkpoint(_look, *arguments, use_reentrant=False, preserve_rng_state=False)
    else:
        found, mean, variance = _look(*arguments)
    statistics: list[tuple[Tensor, Tensor]] = []

    def normal(y: Tensor, which: int) -> Tensor:
        if weights.affine is not None:
            scale, shift = weights.affine[which].unsqueeze(2)
            affine: Tensor = y * scale + shift
            return affine
        if cell_norm is None:
            return y
        assert real is not None
        share = real / real.sum().clamp(min=1)
        mean = (share * y).sum(1, keepdim=True)
        variance = (share * (y - mean).square()).sum(1, keepdim=True)
        statistics.append((mean.detach().squeeze(1), variance.detach().squeeze(1)))
        y = (y - mean) * (variance + cell_norm.eps).rsqrt()
        return y * cell_norm.weight[which].unsqueeze(1) + cell_norm.bias[which].unsqueeze(1)

    if weights.output is not None:
        found = F.elu(weights.output @ torch.cat([found, one]))
    o, i, f, g = (gates + weights.attention @ normal(found, 0)).chunk(4)
    c = normal(f.sigmoid() * c + i.sigmoid() * g.tanh(), 1)
    h = normal(o.sigmoid() * (F.elu(c) if kind.elu else c.tanh()), 2)
    cells = map(torch.stack, zip(*statistics, strict=True)) if statistics else (None, None)
    return Step(State(h, c, memory[1 - kind.window :] if kind.window > 1 else ()), mean, variance, *cells)


def _look(
    weights: Weights, kind: Kind, norm: Norm | None, seen: Tensor | None, query: Tensor, *states: Tensor
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """What the attention finds in the memory of the window, and the statistics of that memory."""
    memory = torch.stack(states)  # (n, 2H, B)
    if weights.places is not None:
        memory = memory + weights.places[-len(memory) :].unsqueeze(2)
    if kind.activation:
        memory = F.elu(memory)
    if norm is None:
        return attend(query, memory, kind.heads), None, None
    assert seen is not None
    seen = seen.unsqueeze(1)  # (n, 1, B)
    share = seen / seen.sum().clamp(min=1)
    mean = (share * memory).sum((0, 2), keepdim=True)
    variance = (share * (memory - mean).square()).sum((0, 2), keepdim=True)
    memory = (memory - mean) * (variance + norm.eps).rsqrt() * norm.weight.unsqueeze(1)
    memory = memory + F.pad(norm.bias, (weights.hidden, 0)).unsqueeze(1)
    return attend(query, memory, kind.heads), mean.detach().flatten(), variance.detach().flatten()


def _stacked(values: Sequence[Tensor | None]) -> Tensor | None:
    there = [value for value in values if value is not None]
    return torch.stack(there) if there else None


def is_quick(weights: Weights, kind: Kind) -> bool:
    """Whether `run` can compute it: not where a state has another activation at each place in the window.

    Nor gradients of norms in evaluation.
    """
    if weights.affine is not None and torch.is_grad_enabled():
        return False
    return weights.places is None or not kind.activation


def run(
    x: Tensor, weights: Weights, kind: Kind, norm: Norm | None = None, cell_norm: CellNorm | None = None
) -> Result:
    """What `steps` computes, quickly, where `is_quick`."""
    assert is_quick(weights, kind)
    states, mean, variance, cell_mean, cell_variance = _Run.apply(
        x.permute(2, 1, 0),  # (T, C, B)
        weights.inputs,
        weights.attention,
        weights.memory,
        weights.places,
        weights.query,
        weights.output,
        weights.affine,
        *((None, None, None, 0.0) if norm is None else (norm.weight, norm.bias, norm.seen, norm.eps)),
        *(
            (None, None, None, 0.0)
            if cell_norm is None
            else (cell_norm.weight, cell_norm.bias, cell_norm.real, cell_norm.eps)
        ),
        kind,
    )
    return Result(
        states=states.permute(2, 1, 0),
        mean=mean,
        variance=variance,
        cell_mean=cell_mean,
        cell_variance=cell_variance,
    )


class _Run(torch.autograd.Function):
    """(T, C, B) -> (T, H, B), and the statistics where normed.

    What one step computes stays in a processor's cache: the backward pass has no arrays of all steps but what
    it returns and the memory's gradient, and adds up the gradients of the weights as it goes.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        inputs: Tensor,
        attention: Tensor,
        memory: Tensor,
        places: Tensor | None,
        query_scale: Tensor | None,
        output: Tensor | None,
        affine: Tensor | None,
        scale: Tensor | None,
        shift: Tensor | None,
        seen: Tensor | None,
        eps: float,
        cell_scale: Tensor | None,
        cell_shift: Tensor | None,
        real: Tensor | None,
        cell_eps: float,
        kind: Kind,
    ) -> Any:
        T, C, B = x.shape
        H = attention.shape[1]
        z, a, m = (x.new_empty(T, rows, B) for rows in (5 * H, H, 2 * H))
        mapped = None if output is None else x.new_empty(T, H, B)
        # What weights are multiplied with, above a row of ones: input and hidden state; cell.
        u, c = x.new_zeros(T + 1, C + H + 1, B), x.new_zeros(T + 1, H + 1, B)
        u[:-1, :C] = x
        u[:, -1], c[:, -1] = 1, 1
        h = u[:, C:-1]
        look = _Look(m, places, kind)
        normed = None if seen is None else _Windows(m, seen, kind.window, eps)
        cells = None
        if cell_scale is not None:
            assert cell_shift is not None
            assert real is not None
            cells = _Cells(cell_scale, cell_shift, real, cell_eps)
        parts = (z, z[:, : 4 * H], z[:, : 3 * H], *z.unflatten(1, (5, H)).unbind(1))
        rows = zip(*parts, a, m, u[:-1], c[:-1], c[:-1, :H], c[1:, :H], h[1:], strict=True)
        for t, row in enumerate(rows):
            now, gates, sigmoids, o, i, f, g, query, found, m_t, u_t, c_one, c_t, c_next, h_next = row
            torch.mm(memory, c_one, out=m_t)
            if kind.activation:
                F.elu_(m_t)
            torch.mm(inputs, u_t, out=now)
            asked = query if query_scale is None else F.elu_(query) * query_scale.unsqueeze(1)
            if normed is None:
                look.attend(t, asked, found)
            else:
                assert scale is not None
                assert shift is not None
                normed.write(t)
                by = (normed.inverse[t] * scale).unsqueeze(1)
                look.attend(t, asked * by[:H], found)
                found -= normed.mean[t, H:, None]
                found = torch.addcmul(shift.unsqueeze(1), found, by[H:])
            if mapped is not None:
                assert output is not None
                found = F.elu_(torch.addmm(output[:, H:], output[:, :H], found, out=mapped[t]))
            if cells is not None:
                found = cells.write(t, 0, found)
            elif affine is not None:
                found = torch.addcmul(affine[0, 1, :, None], found, affine[0, 0, :, None])
            gates.addmm_(attention, found)
            sigmoids.sigmoid_()
            g.tanh_()
            torch.mul(f, c_t, out=c_next).addcmul_(i, g)
            if cells is not None:
                c_next.copy_(cells.write(t, 1, c_next))
            elif affine is not None:
                c_next.mul_(affine[1, 0, :, None]).add_(affine[1, 1, :, None])
            torch.mul(o, F.elu(c_next) if kind.elu else c_next.tanh(), out=h_next)
            if cells is not None:
                h_next.copy_(cells.write(t, 2, h_next))
            elif affine is not None:
                h_next.mul_(affine[2, 0, :, None]).add_(affine[2, 1, :, None])
        ctx.kind = kind
        ctx.save_for_backward(
            u, z, c, a, m, mapped, inputs, attention, memory, places, query_scale, output, scale, shift,
            *((None,) * 4 if normed is None else (normed.mean, normed.inverse, normed.share, seen)),
            *((None,) * 5 if cells is None else (*cells.kept, cells.scale, cells.shift)),
        )  # fmt: skip
        statistics: list[Tensor | None] = [None] * 4
        if normed is not None:
            statistics[:2] = normed.mean.clone(), normed.inverse.pow(-2) - eps
        if cells is not None:
            statistics[2:] = cells.mean.clone(), cells.inverse.pow(-2) - cell_eps
        ctx.mark_non_differentiable(*(value for value in statistics if value is not None))
        return h[1:], *statistics

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        u, z, c, a, m, mapped, *saved = ctx.saved_tensors
        grad = grad.clone(memory_format=torch.contiguous_format)  # each step's in one place; it is added to
        inputs, attention, memory, places, query_scale, output, scale, shift, *saved = saved
        mean, inverse, share, seen, *cell_saved = saved
        cells = None if cell_saved[0] is None else _CellGradients(*cell_saved)
        kind: Kind = ctx.kind
        T, H, B = a.shape
        C = u.shape[1] - H - 1
        dm, dplaces = torch.zeros_like(m), None if places is None else torch.zeros_like(places).unsqueeze(2)
        look = _Look(m, places, kind)
        look.prepare(dm, dplaces)
        du = u.new_empty(T + 1, C + H, B)
        du[-1] = 0
        dinputs, dattention, dmemory = map(torch.zeros_like, (inputs, attention, memory))
        dquery_scale = None if query_scale is None else torch.zeros_like(query_scale)
        doutput = None if output is None else torch.zeros_like(output)
        dz, dc, part = z.new_empty(5 * H, B), z.new_zeros(H, B), z.new_empty(H, B)
        dgates, inner, dquery = dz[: 4 * H], dz[: 3 * H], dz[4 * H :]
        do, di, df, dg = dgates.chunk(4)
        if mean is not None:
            dscale, dshift = torch.zeros_like(scale), torch.zeros_like(shift)
            dsums = mean.new_zeros(T, 2, 2 * H)
        inputs_t, attention_t, memory_t = inputs[:, :-1].t(), attention.t(), memory[:, :-1].t()
        parts = (z[:, : 3 * H], *z.unflatten(1, (5, H)).unbind(1))
        by_step = (c[:-1, :H], c[1:, :H], c[:-1].mT)
        rows = zip(*parts, *by_step, u[:-1].mT, a, m, dm, du[:-1], du[1:, C:], grad, strict=True)
        for t, row in reversed(list(enumerate(rows))):
            sigmoids, o, i, f, g, query, c_t, c_next, c_one, u_t, found, m_t, dm_t, du_t, dh, dh_t = row
            dh += dh_t
            # h = o elu(c_next), c_next = f c_t + i g, each with a norm or without
            out = F.elu(c_next) if kind.elu else c_next.tanh()
            if cells is not None:
                dh = cells.backward(t, 2, dh, o * out)
            torch.mul(dh, o, out=part)
            if kind.elu:
                elu_backward(part, 1.0, 1.0, 1.0, True, out, grad_input=part)
            else:
                tanh_backward(part, out, grad_input=part)
            dc += part
            if cells is not None:
                dc = cells.backward(t, 1, dc, torch.addcmul(f * c_t, i, g))
            torch.mul(dh, out, out=do)
            torch.mul(dc, g, out=di)
            torch.mul(dc, c_t, out=df)
            torch.mul(dc, i, out=dg)
            sigmoid_backward(inner, sigmoids, grad_input=inner)
            tanh_backward(dg, g, grad_input=dg)
            da = torch.mm(attention_t, dgates, out=look.dout)
            by = None if mean is None else (inverse[t] * scale).unsqueeze(1)
            windowed = found if by is None else torch.addcmul(shift.unsqueeze(1), found, by[H:])
            attended = windowed if mapped is None else mapped[t]
            if cells is None:
                dattention.addmm_(dgates, attended.t())
            else:
                dattention.addmm_(dgates, cells.apply(t, 0, attended).t())
                da.copy_(cells.backward(t, 0, da, attended))
            if doutput is not None:
                elu_backward(da, 1.0, 1.0, 1.0, True, attended, grad_input=da)
                doutput[:, :H].addmm_(da, windowed.t())
                doutput[:, H] += da.sum(1)
                da.copy_(output[:, :H].t() @ da)
            asked = query if query_scale is None else query * query_scale.unsqueeze(1)
            if by is None:
                look.query.copy_(asked)
                look.backward(t, dquery)
            else:
                dshift += da.sum(1)
                dby = torch.cat([asked, da * found]).view(2, H, B)
                da *= by[H:]
                torch.mul(asked, by[:H], out=look.query)
                look.backward(t, dquery)
                dby[0] *= dquery
                dquery *= by[:H]
                dby = dby.sum(2).flatten()
                dscale += dby * inverse[t]
                dvariance = -0.5 * dby * scale * inverse[t] ** 3
                dmean = -2 * mean[t] * dvariance
                dmean[H:] -= da.sum(1)
                dsums[max(0, t + 1 - kind.window) : t + 1] += torch.stack([dmean, dvariance]) * share[t]
                dm_t += seen[t] * (dsums[t, 0, :, None] + 2 * m_t * dsums[t, 1, :, None])
            if dquery_scale is not None:
                dquery_scale += (dquery * query).sum(1)
                dquery *= query_scale.unsqueeze(1)
                elu_backward(dquery, 1.0, 1.0, 1.0, True, query, grad_input=dquery)
            if kind.activation:
                elu_backward(dm_t, 1.0, 1.0, 1.0, True, m_t, grad_input=dm_t)
            dinputs.addmm_(dz, u_t)
            dmemory.addmm_(dm_t, c_one)
            torch.mm(inputs_t, dz, out=du_t)
            dc.mul_(f).addmm_(memory_t, dm_t)
        weights = (dinputs, dattention, dmemory, None if dplaces is None else dplaces.squeeze(2))
        norm = (None, None) if mean is None else (dscale, dshift)
        cell_norm = (None, None) if cells is None else (cells.dscale, cells.dshift)
        options = dquery_scale, doutput, None
        return du[:-1, :C], *weights, *options, *norm, None, None, *cell_norm, None, None, None


class _Look:
    """The attention of one step after the other to the memory `m`, (T, 2H, B), as far as it is written."""

    def __init__(self, m: Tensor, places: Tensor | None, kind: Kind) -> None:
        self.window, self.heads = kind.window, kind.heads
        self.m = self._by_head(m)  # (2, T, heads, d, B)
        self.places = None if places is None else self._by_head(places.unsqueeze(2))
        self.shape = self.m.shape[2:]
        n = min(kind.window, len(m))
        self.products = m.new_empty(n, *self.shape)

    def attend(self, t: int, query: Tensor, out: Tensor) -> None:
        """Both (H, B)."""
        keys, values = self._window(t)
        products = torch.mul(keys, query.view(self.shape), out=self.products[: len(keys)])
        p = products.sum(2).softmax(0)  # (n, heads, B)
        torch.mul(values, p.unsqueeze(2), out=products)
        torch.sum(products, 0, out=out.view(self.shape))

    def prepare(self, dm: Tensor, dplaces: Tensor | None) -> None:
        """For `backward`, which adds to `dm`, (T, 2H, B), and `dplaces`, (window, 2H, 1)."""
        self.dm, self.dplaces = self._by_head(dm), None if dplaces is None else self._by_head(dplaces)
        # Keys meet the query where values meet the gradient of what was found, so both are done at once.
        self.both = dm.new_empty(2, 1, *self.shape)
        self.query, self.dout = self.both.view(2, -1, dm.shape[2])
        n = len(self.products)
        self.product_pairs = dm.new_empty(2, n, *self.shape)
        self.pairs = dm.new_empty(2, n, self.heads, dm.shape[2])

    def backward(self, t: int, dquery: Tensor) -> None:
        """Writes the gradient of `query` by that in `dout`, and adds those of the memory and the places."""
        window = self._window(t)
        n = window.shape[1]
        scores, dp = torch.mul(window, self.both, out=self.product_pairs[:, :n]).sum(3)  # (n, heads, B)
        pairs = self.pairs[:, :n]
        ds, p = pairs
        torch.softmax(scores, 0, out=p)
        softmax_backward(dp, p, 0, p.dtype, grad_input=ds)
        products = torch.mul(window[0], ds.unsqueeze(2), out=self.products[:n])
        torch.sum(products, 0, out=dquery.view(self.shape))
        self.dm[:, t + 1 - n : t + 1].addcmul_(pairs.unsqueeze(3), self.both)
        if self.dplaces is not None:
            self.dplaces[:, -n:] += torch.einsum("knhb,khdb->knhd", pairs, self.both.squeeze(1)).unsqueeze(-1)

    def _window(self, t: int) -> Tensor:
        """Keys and values of the states up to that of step `t`: (2, n, heads, d, B)."""
        there = self.m[:, max(0, t + 1 - self.window) : t + 1]
        return there if self.places is None else there + self.places[:, -there.shape[1] :]

    def _by_head(self, memory: Tensor) -> Tensor:
        parts: Tensor = memory.unflatten(1, (2, self.heads, -1)).transpose(0, 1)
        return parts


class _Windows:
    """Mean and inverse deviation of the memory `m`, (T, 2H, B), in each step's window, as it is written."""

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


class _Cells:
    """Batch norms of each step's values `(H, B)`: of what was found, of the cell and of the hidden state."""

    def __init__(self, scale: Tensor, shift: Tensor, real: Tensor, eps: float) -> None:
        self.scale, self.shift, self.eps = scale, shift, eps
        self.share = real / real.sum(1, keepdim=True).clamp(min=1)  # (T, B)
        self.mean, self.inverse = (scale.new_empty(len(real), *scale.shape) for _ in range(2))

    @property
    def kept(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.mean, self.inverse, self.share

    def write(self, t: int, which: int, y: Tensor) -> Tensor:
        mean = torch.mv(y, self.share[t], out=self.mean[t, which])
        y = y - mean.unsqueeze(1)
        torch.mv(y * y, self.share[t], out=self.inverse[t, which]).add_(self.eps).rsqrt_()
        by = self.inverse[t, which] * self.scale[which]
        return torch.addcmul(self.shift[which].unsqueeze(1), y, by.unsqueeze(1))


class _CellGradients:
    """The backward pass of `_Cells`. `dscale` and `dshift` are complete once each step was gone through."""

    def __init__(self, mean: Tensor, inverse: Tensor, share: Tensor, scale: Tensor, shift: Tensor) -> None:
        self.mean, self.inverse, self.share, self.scale, self.shift = mean, inverse, share, scale, shift
        self.dscale, self.dshift = torch.zeros_like(scale), torch.zeros_like(shift)

    def apply(self, t: int, which: int, y: Tensor) -> Tensor:
        by = (self.inverse[t, which] * self.scale[which]).unsqueeze(1)
        return torch.addcmul(self.shift[which].unsqueeze(1), y - self.mean[t, which].unsqueeze(1), by)

    def backward(self, t: int, which: int, grad: Tensor, y: Tensor) -> Tensor:
        """Return the gradient of what was normed, `y`, by that of the result."""
        inverse = self.inverse[t, which].unsqueeze(1)
        y = (y - self.mean[t, which].unsqueeze(1)) * inverse
        dscale, dshift = (grad * y).sum(1), grad.sum(1)
        self.dscale[which] += dscale
        self.dshift[which] += dshift
        inner = torch.addcmul(dshift.unsqueeze(1), y, dscale.unsqueeze(1))
        return torch.addcmul(grad, inner, self.share[t], value=-1) * (
            inverse * self.scale[which].unsqueeze(1)
        )

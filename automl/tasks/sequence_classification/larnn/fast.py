"""The loop over time of a LARNN layer as one autograd function with a written-out backward pass.

It computes the same as `loop.run`, but faster. Autograd records nothing. The memory of a
state is computed once, when it is written, and not at each of the `window` steps that attend to it. Each
window is one slice of the memory. The softmax, `window` x heads values per step, is computed again in the
backward pass and not kept. Features come before the batch, (H, B).

A norm of keys and values is the same linear map for all states of a window, so it is not applied to them. Its
scale is applied to the query, where a shift of all keys has no effect, and to the attention's result. The
statistics of a window are sums over its states of sums that are computed once for each state.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from automl.tasks.sequence_classification.larnn.loop import Kind, Norm, Statistics, Weights
from backbones.torch_internals import softmax_backward


class WindowAttention:
    """Attention of one step after the other to the memory `m`, (T, 2H, B), up to the current step."""

    def __init__(self, m: Tensor, offsets: Tensor | None, kind: Kind) -> None:
        self.window, self.heads = kind.window, kind.heads
        self.m = self._by_head(m)  # (2, T, heads, d, B)
        self.offsets = None if offsets is None else self._by_head(offsets.unsqueeze(2))
        self.shape = self.m.shape[2:]
        self.products = m.new_empty(min(kind.window, len(m)), *self.shape)

    def attend(self, t: int, query: Tensor, out: Tensor) -> None:
        """Attend with `query`, (H, B), and write the result to `out`, (H, B)."""
        keys, values = self._window(t)
        products = torch.mul(keys, query.view(self.shape), out=self.products[: len(keys)])
        p = products.sum(2).softmax(0)  # (n, heads, B)
        torch.mul(values, p.unsqueeze(2), out=products)
        torch.sum(products, 0, out=out.view(self.shape))

    def prepare(self, dm: Tensor, doffsets: Tensor | None) -> None:
        """Prepare `backward`, which adds to `dm`, (T, 2H, B), and `doffsets`, (window, 2H, 1)."""
        self.dm, self.doffsets = self._by_head(dm), None if doffsets is None else self._by_head(doffsets)
        # Keys are multiplied with the query as values are with the result's gradient, so both are done at
        # once.
        self.both = dm.new_empty(2, 1, *self.shape)
        self.query, self.dout = self.both.view(2, -1, dm.shape[2])
        n = len(self.products)
        self.product_pairs = dm.new_empty(2, n, *self.shape)
        self.pairs = dm.new_empty(2, n, self.heads, dm.shape[2])

    def backward(self, t: int, dquery: Tensor) -> None:
        """Write the gradient of `query`, given that in `dout`, and add those of memory and offsets."""
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
        if self.doffsets is not None:
            self.doffsets[:, -n:] += torch.einsum("knhb,khdb->knhd", pairs, self.both.squeeze(1)).unsqueeze(
                -1
            )

    def _window(self, t: int) -> Tensor:
        """Return keys and values of the states up to that of step `t`: (2, n, heads, d, B)."""
        states = self.m[:, max(0, t + 1 - self.window) : t + 1]
        return states if self.offsets is None else states + self.offsets[:, -states.shape[1] :]

    def _by_head(self, memory: Tensor) -> Tensor:
        heads: Tensor = memory.unflatten(1, (2, self.heads, -1)).transpose(0, 1)
        return heads


class WindowNorm:
    """Batch norm of the memory `m`, (T, 2H, B), in each window, computed as the memory is written."""

    def __init__(
        self, m: Tensor, window: int, scale: Tensor, shift: Tensor, seen: Tensor, eps: float
    ) -> None:
        self.m, self.window, self.scale, self.shift, self.seen, self.eps = m, window, scale, shift, seen, eps
        self.sums = m.new_empty(len(m), 2, m.shape[1])  # Sums of each state's values and of their squares.
        self.mean, self.inverse = m.new_empty(len(m), m.shape[1]), m.new_empty(len(m), m.shape[1])
        count = F.pad(seen.sum(1).cumsum(0), (window, 0))
        self.row_weights = 1 / (count[window:] - count[:-window]).clamp(min=1)  # (T)

    @property
    def kept(self) -> tuple[Tensor, ...]:
        return self.scale, self.shift, self.mean, self.inverse, self.row_weights, self.seen

    @property
    def statistics(self) -> tuple[Tensor, Tensor]:
        return self.mean.clone(), self.inverse.pow(-2) - self.eps

    def attend(self, t: int, windows: WindowAttention, query: Tensor, out: Tensor) -> Tensor:
        """Return the result of normalised states, (H, B). That of the states as they are is kept in `out`."""
        H = len(out)
        self._write(t)
        by = (self.inverse[t] * self.scale).unsqueeze(1)
        windows.attend(t, query * by[:H], out)
        out -= self.mean[t, H:, None]
        return torch.addcmul(self.shift.unsqueeze(1), out, by[H:])

    def _write(self, t: int) -> None:
        now = self.m[t]
        torch.mv(now, self.seen[t], out=self.sums[t, 0])
        torch.mv(now * now, self.seen[t], out=self.sums[t, 1])
        mean, square = (self.sums[max(0, t + 1 - self.window) : t + 1].sum(0) * self.row_weights[t]).unbind(0)
        self.mean[t] = mean
        torch.addcmul(square, mean, mean, value=-1, out=self.inverse[t])
        self.inverse[t].clamp_(min=0).add_(self.eps).rsqrt_()


class WindowNormGradients:
    """Backward pass of `WindowNorm`, which adds to `dm`, (T, 2H, B)."""

    def __init__(self, m: Tensor, dm: Tensor, window: int, *kept: Tensor) -> None:
        self.m, self.dm, self.window = m, dm, window
        self.scale, self.shift, self.mean, self.inverse, self.row_weights, self.seen = kept
        self.dscale, self.dshift = torch.zeros_like(self.scale), torch.zeros_like(self.shift)
        self.dsums = self.mean.new_zeros(len(m), 2, m.shape[1])

    def apply(self, t: int, raw: Tensor) -> Tensor:
        return torch.addcmul(self.shift.unsqueeze(1), raw, self._by(t)[len(raw) :])

    def backward(self, t: int, windows: WindowAttention, query: Tensor, raw: Tensor, dquery: Tensor) -> None:
        """Write the gradient of `query`, given that of the result in `windows.dout`."""
        da, by, mean, inverse = windows.dout, self._by(t), self.mean[t], self.inverse[t]
        H = len(da)
        self.dshift += da.sum(1)
        pairs = torch.cat([query, da * raw]).view(2, H, -1)
        da *= by[H:]
        torch.mul(query, by[:H], out=windows.query)
        windows.backward(t, dquery)
        pairs[0] *= dquery
        dquery *= by[:H]
        dby = pairs.sum(2).flatten()
        self.dscale += dby * inverse
        dvariance = -0.5 * dby * self.scale * inverse**3
        dmean = -2 * mean * dvariance
        dmean[H:] -= da.sum(1)
        states = slice(max(0, t + 1 - self.window), t + 1)
        self.dsums[states] += torch.stack([dmean, dvariance]) * self.row_weights[t]
        sums = self.dsums[t, :, :, None]
        self.dm[t] += self.seen[t] * (sums[0] + 2 * self.m[t] * sums[1])

    def _by(self, t: int) -> Tensor:
        return (self.inverse[t] * self.scale).unsqueeze(1)


elu_backward = torch.ops.aten.elu_backward.grad_input
sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input
tanh_backward = torch.ops.aten.tanh_backward.grad_input

NO_NORM = (None, None, None, 0.0)


def is_supported(weights: Weights, kind: Kind) -> bool:
    """Return whether `run` supports these weights.

    It does not if states have an activation after offsets that depend on the position in the window. It also
    does not compute gradients of norms in evaluation.
    """
    if weights.affine is not None and torch.is_grad_enabled():
        return False
    return weights.offsets is None or not kind.activation


def run(
    x: Tensor, weights: Weights, kind: Kind, norm: Norm | None = None, cell_norm: Norm | None = None
) -> tuple[Tensor, Statistics]:
    """Compute the same as `loop.run`. The weights must be supported, see `is_supported`."""
    assert is_supported(weights, kind)
    states, *statistics = _Run.apply(
        x.permute(2, 1, 0),  # (T, C, B)
        *weights,
        *(norm or NO_NORM),
        *(cell_norm or NO_NORM),
        kind,
    )
    return states.permute(2, 1, 0), Statistics(*statistics)


class _Run(torch.autograd.Function):
    """Function from (T, C, B) to (T, H, B) and the statistics of the norms.

    The values of one step stay in a processor's cache. The only arrays of all steps in the backward pass are
    its results and the memory's gradient. It accumulates the gradients of the weights step by step.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, inputs: Tensor, attention: Tensor, memory: Tensor, *others: Any) -> Any:
        offsets, query_scale, output, affine, *norm_values, kind = others
        T, C, B = x.shape
        H = attention.shape[1]
        z, a, m = (x.new_empty(T, rows, B) for rows in (5 * H, H, 2 * H))
        mapped = None if output is None else x.new_empty(T, H, B)
        # Factors of the weights, above a row of ones: input and hidden state; cell.
        u, c = x.new_zeros(T + 1, C + H + 1, B), x.new_zeros(T + 1, H + 1, B)
        u[:-1, :C] = x
        u[:, -1], c[:, -1] = 1, 1
        h = u[:, C:-1]
        windows = WindowAttention(m, offsets, kind)
        norm = None if norm_values[0] is None else WindowNorm(m, kind.window, *norm_values[:4])
        cells = None if norm_values[4] is None else _CellNorms(*norm_values[4:])
        scaled = _Affine(affine) if cells is None and affine is not None else cells
        views = (z, z[:, : 4 * H], z[:, : 3 * H], *z.unflatten(1, (5, H)).unbind(1))
        rows = zip(*views, a, m, u[:-1], c[:-1], c[:-1, :H], c[1:, :H], h[1:], strict=True)
        for t, row in enumerate(rows):
            now, gates, sigmoids, o, i, f, g, query, attended, m_t, u_t, c_one, c_t, c_next, h_next = row
            torch.mm(memory, c_one, out=m_t)
            if kind.activation:
                F.elu_(m_t)
            torch.mm(inputs, u_t, out=now)
            query = query if query_scale is None else F.elu_(query) * query_scale.unsqueeze(1)
            if norm is None:
                windows.attend(t, query, attended)
            else:
                attended = norm.attend(t, windows, query, attended)
            if output is not None and mapped is not None:
                attended = F.elu_(torch.addmm(output[:, H:], output[:, :H], attended, out=mapped[t]))
            if scaled is not None:
                attended = scaled.write(t, 0, attended)
            gates.addmm_(attention, attended)
            sigmoids.sigmoid_()
            g.tanh_()
            torch.mul(f, c_t, out=c_next).addcmul_(i, g)
            if scaled is not None:
                c_next.copy_(scaled.write(t, 1, c_next))
            torch.mul(o, F.elu(c_next) if kind.elu else c_next.tanh(), out=h_next)
            if scaled is not None:
                h_next.copy_(scaled.write(t, 2, h_next))
        ctx.kind = kind
        ctx.save_for_backward(
            u, z, c, a, m, mapped, inputs, attention, memory, offsets, query_scale, output,
            *((None,) * 6 if norm is None else norm.kept), *((None,) * 5 if cells is None else cells.kept),
        )  # fmt: skip
        statistics = [
            value for part in (norm, cells) for value in (part.statistics if part else (None, None))
        ]
        ctx.mark_non_differentiable(*(value for value in statistics if value is not None))
        return h[1:], *statistics

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        # Each step's gradient must be contiguous, and it is changed in place.
        return _Backward(ctx.kind, *ctx.saved_tensors).run(grad.clone(memory_format=torch.contiguous_format))


class _Backward:
    """Backward pass of `_Run`, from what its forward pass has saved. The gradient of `x` is `dx`."""

    def __init__(self, kind: Kind, *saved: Any) -> None:
        u, z, c, a, m, mapped, inputs, attention, memory, offsets, query_scale, output, *norms = saved
        self.kind, self.query_scale, self.output, self.mapped = kind, query_scale, output, mapped
        T, self.H, B = a.shape
        self.saved = u, z, c, a, m
        self.dm = torch.zeros_like(m)
        self.doffsets = None if offsets is None else torch.zeros_like(offsets).unsqueeze(2)
        self.windows = WindowAttention(m, offsets, kind)
        self.windows.prepare(self.dm, self.doffsets)
        self.norm = None if norms[0] is None else WindowNormGradients(m, self.dm, kind.window, *norms[:6])
        self.cells = None if norms[6] is None else _CellGradients(*norms[6:])
        self.du = u.new_zeros(T + 1, u.shape[1] - 1, B)
        self.dinputs, self.dattention, self.dmemory = map(torch.zeros_like, (inputs, attention, memory))
        self.dquery_scale = None if query_scale is None else torch.zeros_like(query_scale)
        self.doutput = None if output is None else torch.zeros_like(output)
        self.dz, self.dcell = z.new_empty(5 * self.H, B), z.new_empty(self.H, B)
        self.dgates, self.dquery = self.dz[: 4 * self.H], self.dz[4 * self.H :]
        self.by_gate = *self.dgates.chunk(4), self.dz[: 3 * self.H]
        self.inputs_t, self.attention_t, self.memory_t = inputs[:, :-1].t(), attention.t(), memory[:, :-1].t()

    def run(self, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the arguments of `_Run.forward`. `grad`, (T, H, B), is changed."""
        u, z, c, a, m = self.saved
        H, C = self.H, u.shape[1] - self.H - 1
        dz, dc = self.dz, torch.zeros_like(self.dcell)
        cell = (z[:, : 3 * H], *z.unflatten(1, (5, H)).unbind(1)[:4], c[:-1, :H], c[1:, :H])
        rows = zip(*cell, z[:, 4 * H :], a, u[:-1].mT, c[:-1].mT, m, self.dm, self.du[:-1],
                   grad, self.du[1:, C:], strict=True)  # fmt: skip
        for t, row in reversed(list(enumerate(rows))):
            *of_cell, query, raw, u_t, c_one, m_t, dm_t, du_t, dh, dh_t = row
            dh += dh_t
            dc = self._cell(t, dh, dc, *of_cell)
            self._window(t, query, raw)
            if self.kind.activation:
                elu_backward(dm_t, 1.0, 1.0, 1.0, True, m_t, grad_input=dm_t)
            self.dinputs.addmm_(dz, u_t)
            self.dmemory.addmm_(dm_t, c_one)
            torch.mm(self.inputs_t, dz, out=du_t)
            dc.mul_(of_cell[3]).addmm_(self.memory_t, dm_t)
        doffsets = None if self.doffsets is None else self.doffsets.squeeze(2)
        weights = (self.dinputs, self.dattention, self.dmemory, doffsets, self.dquery_scale, self.doutput)
        norm = (None, None) if self.norm is None else (self.norm.dscale, self.norm.dshift)
        cells = (None, None) if self.cells is None else (self.cells.dscale, self.cells.dshift)
        return self.du[:-1, :C], *weights, None, *norm, None, None, *cells, None, None, None

    def _cell(self, t: int, dh: Tensor, dc: Tensor, *row: Tensor) -> Tensor:
        """Write the gradient of the gates to `dz`, and return that of the cell before its norm."""
        # h = o elu(c_next), c_next = f c_t + i g, each with a norm or without.
        sigmoids, o, i, f, g, c_t, c_next = row
        do, di, df, dg, inner = self.by_gate
        cells, dcell = self.cells, self.dcell
        out = F.elu(c_next) if self.kind.elu else c_next.tanh()
        if cells is not None:
            dh = cells.backward(t, 2, dh, o * out)
        torch.mul(dh, o, out=dcell)
        if self.kind.elu:
            elu_backward(dcell, 1.0, 1.0, 1.0, True, out, grad_input=dcell)
        else:
            tanh_backward(dcell, out, grad_input=dcell)
        dc += dcell
        if cells is not None:
            dc = cells.backward(t, 1, dc, torch.addcmul(f * c_t, i, g))
        torch.mul(dh, out, out=do)
        torch.mul(dc, g, out=di)
        torch.mul(dc, c_t, out=df)
        torch.mul(dc, i, out=dg)
        sigmoid_backward(inner, sigmoids, grad_input=inner)
        tanh_backward(dg, g, grad_input=dg)
        return dc

    def _window(self, t: int, query: Tensor, raw: Tensor) -> None:
        """Write the gradient of the query to `dz`, given that of the gates."""
        H, norm, windows, output = self.H, self.norm, self.windows, self.output
        dgates, dquery = self.dgates, self.dquery
        da = torch.mm(self.attention_t, dgates, out=windows.dout)
        windowed = raw if norm is None else norm.apply(t, raw)
        attended = windowed if self.mapped is None else self.mapped[t]
        if self.cells is None:
            self.dattention.addmm_(dgates, attended.t())
        else:
            self.dattention.addmm_(dgates, self.cells.apply(t, 0, attended).t())
            da.copy_(self.cells.backward(t, 0, da, attended))
        if output is not None and self.doutput is not None:
            elu_backward(da, 1.0, 1.0, 1.0, True, attended, grad_input=da)
            self.doutput[:, :H].addmm_(da, windowed.t())
            self.doutput[:, H] += da.sum(1)
            da.copy_(output[:, :H].t() @ da)
        scaled = query if self.query_scale is None else query * self.query_scale.unsqueeze(1)
        if norm is None:
            windows.query.copy_(scaled)
            windows.backward(t, dquery)
        else:
            norm.backward(t, windows, scaled, raw, dquery)
        if self.query_scale is not None and self.dquery_scale is not None:
            self.dquery_scale += (dquery * query).sum(1)
            dquery *= self.query_scale.unsqueeze(1)
            elu_backward(dquery, 1.0, 1.0, 1.0, True, query, grad_input=dquery)


class _Affine:
    """The norms of attention's result, cell and hidden state in evaluation, (3, 2, H)."""

    def __init__(self, affine: Tensor) -> None:
        self.affine = affine.unsqueeze(3)

    def write(self, t: int, index: int, y: Tensor) -> Tensor:
        return torch.addcmul(self.affine[index, 1], y, self.affine[index, 0])


class _CellNorms:
    """Batch norms of each step's values (H, B): attention's result, cell and hidden state."""

    def __init__(self, scale: Tensor, shift: Tensor, real: Tensor, eps: float) -> None:
        self.scale, self.shift, self.eps = scale, shift, eps
        self.row_weights = real / real.sum(1, keepdim=True).clamp(min=1)  # (T, B)
        self.mean, self.inverse = (scale.new_empty(len(real), *scale.shape) for _ in range(2))

    @property
    def kept(self) -> tuple[Tensor, ...]:
        return self.mean, self.inverse, self.row_weights, self.scale, self.shift

    @property
    def statistics(self) -> tuple[Tensor, Tensor]:
        return self.mean.clone(), self.inverse.pow(-2) - self.eps

    def write(self, t: int, index: int, y: Tensor) -> Tensor:
        mean = torch.mv(y, self.row_weights[t], out=self.mean[t, index])
        y = y - mean.unsqueeze(1)
        torch.mv(y * y, self.row_weights[t], out=self.inverse[t, index]).add_(self.eps).rsqrt_()
        by = self.inverse[t, index] * self.scale[index]
        return torch.addcmul(self.shift[index].unsqueeze(1), y, by.unsqueeze(1))


class _CellGradients:
    """Backward pass of `_CellNorms`. `dscale` and `dshift` are complete after the last step."""

    def __init__(self, *kept: Tensor) -> None:
        self.mean, self.inverse, self.row_weights, self.scale, self.shift = kept
        self.dscale, self.dshift = torch.zeros_like(self.scale), torch.zeros_like(self.shift)

    def apply(self, t: int, index: int, y: Tensor) -> Tensor:
        by = (self.inverse[t, index] * self.scale[index]).unsqueeze(1)
        return torch.addcmul(self.shift[index].unsqueeze(1), y - self.mean[t, index].unsqueeze(1), by)

    def backward(self, t: int, index: int, grad: Tensor, y: Tensor) -> Tensor:
        """Return the gradient of the normalised values' input `y`, given that of the result."""
        inverse = self.inverse[t, index].unsqueeze(1)
        y = (y - self.mean[t, index].unsqueeze(1)) * inverse
        dscale, dshift = (grad * y).sum(1), grad.sum(1)
        self.dscale[index] += dscale
        self.dshift[index] += dshift
        inner = torch.addcmul(dshift.unsqueeze(1), y, dscale.unsqueeze(1))
        return torch.addcmul(grad, inner, self.row_weights[t], value=-1) * (
            inverse * self.scale[index].unsqueeze(1)
        )

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

from automl.tasks.sequence_classification.larnn.loop import CellNorm, Kind, Norm, Result, Weights
from backbones.torch_internals import softmax_backward

elu_backward = torch.ops.aten.elu_backward.grad_input
sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input
tanh_backward = torch.ops.aten.tanh_backward.grad_input


def is_supported(weights: Weights, kind: Kind) -> bool:
    """Return whether `run` supports these weights.

    It does not if states have an activation after offsets that depend on the position in the window. It also
    does not compute gradients of norms in evaluation.
    """
    if weights.affine is not None and torch.is_grad_enabled():
        return False
    return weights.offsets is None or not kind.activation


def run(
    x: Tensor, weights: Weights, kind: Kind, norm: Norm | None = None, cell_norm: CellNorm | None = None
) -> Result:
    """Compute the same as `larnn_loop.run`. The weights must be supported, see `is_supported`."""
    assert is_supported(weights, kind)
    states, mean, variance, cell_mean, cell_variance = _Run.apply(
        x.permute(2, 1, 0),  # (T, C, B)
        weights.inputs,
        weights.attention,
        weights.memory,
        weights.offsets,
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
    """Function from (T, C, B) to (T, H, B) and the statistics of the norms.

    The values of one step stay in a processor's cache. The only arrays of all steps in the backward pass are
    its results and the memory's gradient. It accumulates the gradients of the weights step by step.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        inputs: Tensor,
        attention: Tensor,
        memory: Tensor,
        offsets: Tensor | None,
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
        # Factors of the weights, above a row of ones: input and hidden state; cell.
        u, c = x.new_zeros(T + 1, C + H + 1, B), x.new_zeros(T + 1, H + 1, B)
        u[:-1, :C] = x
        u[:, -1], c[:, -1] = 1, 1
        h = u[:, C:-1]
        windows = _WindowAttention(m, offsets, kind)
        normed = None if seen is None else _WindowStatistics(m, seen, kind.window, eps)
        cells = None
        if cell_scale is not None:
            assert cell_shift is not None
            assert real is not None
            cells = _CellNorms(cell_scale, cell_shift, real, cell_eps)
        views = (z, z[:, : 4 * H], z[:, : 3 * H], *z.unflatten(1, (5, H)).unbind(1))
        rows = zip(*views, a, m, u[:-1], c[:-1], c[:-1, :H], c[1:, :H], h[1:], strict=True)
        for t, row in enumerate(rows):
            now, gates, sigmoids, o, i, f, g, query, attended, m_t, u_t, c_one, c_t, c_next, h_next = row
            torch.mm(memory, c_one, out=m_t)
            if kind.activation:
                F.elu_(m_t)
            torch.mm(inputs, u_t, out=now)
            scaled_query = query if query_scale is None else F.elu_(query) * query_scale.unsqueeze(1)
            if normed is None:
                windows.attend(t, scaled_query, attended)
            else:
                assert scale is not None
                assert shift is not None
                normed.write(t)
                by = (normed.inverse[t] * scale).unsqueeze(1)
                windows.attend(t, scaled_query * by[:H], attended)
                attended -= normed.mean[t, H:, None]
                attended = torch.addcmul(shift.unsqueeze(1), attended, by[H:])
            if mapped is not None:
                assert output is not None
                attended = F.elu_(torch.addmm(output[:, H:], output[:, :H], attended, out=mapped[t]))
            if cells is not None:
                attended = cells.write(t, 0, attended)
            elif affine is not None:
                attended = torch.addcmul(affine[0, 1, :, None], attended, affine[0, 0, :, None])
            gates.addmm_(attention, attended)
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
            u, z, c, a, m, mapped, inputs, attention, memory, offsets, query_scale, output, scale, shift,
            *((None,) * 4 if normed is None else (normed.mean, normed.inverse, normed.row_weights, seen)),
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
        # Each step's gradient must be contiguous, and it is changed in place.
        grad = grad.clone(memory_format=torch.contiguous_format)
        inputs, attention, memory, offsets, query_scale, output, scale, shift, *saved = saved
        mean, inverse, row_weights, seen, *cell_saved = saved
        cells = None if cell_saved[0] is None else _CellGradients(*cell_saved)
        kind: Kind = ctx.kind
        T, H, B = a.shape
        C = u.shape[1] - H - 1
        dm, doffsets = (
            torch.zeros_like(m),
            None if offsets is None else torch.zeros_like(offsets).unsqueeze(2),
        )
        windows = _WindowAttention(m, offsets, kind)
        windows.prepare(dm, doffsets)
        du = u.new_empty(T + 1, C + H, B)
        du[-1] = 0
        dinputs, dattention, dmemory = map(torch.zeros_like, (inputs, attention, memory))
        dquery_scale = None if query_scale is None else torch.zeros_like(query_scale)
        doutput = None if output is None else torch.zeros_like(output)
        dz, dc, dcell = z.new_empty(5 * H, B), z.new_zeros(H, B), z.new_empty(H, B)
        dgates, inner, dquery = dz[: 4 * H], dz[: 3 * H], dz[4 * H :]
        do, di, df, dg = dgates.chunk(4)
        if mean is not None:
            dscale, dshift = torch.zeros_like(scale), torch.zeros_like(shift)
            dsums = mean.new_zeros(T, 2, 2 * H)
        inputs_t, attention_t, memory_t = inputs[:, :-1].t(), attention.t(), memory[:, :-1].t()
        views = (z[:, : 3 * H], *z.unflatten(1, (5, H)).unbind(1))
        by_step = (c[:-1, :H], c[1:, :H], c[:-1].mT)
        rows = zip(*views, *by_step, u[:-1].mT, a, m, dm, du[:-1], du[1:, C:], grad, strict=True)
        for t, row in reversed(list(enumerate(rows))):
            sigmoids, o, i, f, g, query, c_t, c_next, c_one, u_t, raw, m_t, dm_t, du_t, dh, dh_t = row
            dh += dh_t
            # h = o elu(c_next), c_next = f c_t + i g, each with a norm or without
            out = F.elu(c_next) if kind.elu else c_next.tanh()
            if cells is not None:
                dh = cells.backward(t, 2, dh, o * out)
            torch.mul(dh, o, out=dcell)
            if kind.elu:
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
            da = torch.mm(attention_t, dgates, out=windows.dout)
            by = None if mean is None else (inverse[t] * scale).unsqueeze(1)
            windowed = raw if by is None else torch.addcmul(shift.unsqueeze(1), raw, by[H:])
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
            scaled_query = query if query_scale is None else query * query_scale.unsqueeze(1)
            if by is None:
                windows.query.copy_(scaled_query)
                windows.backward(t, dquery)
            else:
                dshift += da.sum(1)
                dby = torch.cat([scaled_query, da * raw]).view(2, H, B)
                da *= by[H:]
                torch.mul(scaled_query, by[:H], out=windows.query)
                windows.backward(t, dquery)
                dby[0] *= dquery
                dquery *= by[:H]
                dby = dby.sum(2).flatten()
                dscale += dby * inverse[t]
                dvariance = -0.5 * dby * scale * inverse[t] ** 3
                dmean = -2 * mean[t] * dvariance
                dmean[H:] -= da.sum(1)
                dsums[max(0, t + 1 - kind.window) : t + 1] += torch.stack([dmean, dvariance]) * row_weights[t]
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
        weights = (dinputs, dattention, dmemory, None if doffsets is None else doffsets.squeeze(2))
        norm = (None, None) if mean is None else (dscale, dshift)
        cell_norm = (None, None) if cells is None else (cells.dscale, cells.dshift)
        options = dquery_scale, doutput, None
        return du[:-1, :C], *weights, *options, *norm, None, None, *cell_norm, None, None, None


class _WindowAttention:
    """Attention of one step after the other to the memory `m`, (T, 2H, B), up to the current step."""

    def __init__(self, m: Tensor, offsets: Tensor | None, kind: Kind) -> None:
        self.window, self.heads = kind.window, kind.heads
        self.m = self._by_head(m)  # (2, T, heads, d, B)
        self.offsets = None if offsets is None else self._by_head(offsets.unsqueeze(2))
        self.shape = self.m.shape[2:]
        n = min(kind.window, len(m))
        self.products = m.new_empty(n, *self.shape)

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


class _WindowStatistics:
    """Mean and inverse deviation of the memory `m`, (T, 2H, B), in each window, computed as it is written."""

    def __init__(self, m: Tensor, seen: Tensor, window: int, eps: float) -> None:
        self.m, self.seen, self.window, self.eps = m, seen, window, eps
        self.sums = m.new_empty(len(m), 2, m.shape[1])  # Sums of each state's values and of their squares.
        self.mean, self.inverse = m.new_empty(len(m), m.shape[1]), m.new_empty(len(m), m.shape[1])
        count = F.pad(seen.sum(1).cumsum(0), (window, 0))
        self.row_weights = 1 / (count[window:] - count[:-window]).clamp(min=1)  # (T)

    def write(self, t: int) -> None:
        now = self.m[t]
        torch.mv(now, self.seen[t], out=self.sums[t, 0])
        torch.mv(now * now, self.seen[t], out=self.sums[t, 1])
        mean, square = (self.sums[max(0, t + 1 - self.window) : t + 1].sum(0) * self.row_weights[t]).unbind(0)
        self.mean[t] = mean
        torch.addcmul(square, mean, mean, value=-1, out=self.inverse[t])
        self.inverse[t].clamp_(min=0).add_(self.eps).rsqrt_()


class _CellNorms:
    """Batch norms of each step's values (H, B): attention's result, cell and hidden state."""

    def __init__(self, scale: Tensor, shift: Tensor, real: Tensor, eps: float) -> None:
        self.scale, self.shift, self.eps = scale, shift, eps
        self.row_weights = real / real.sum(1, keepdim=True).clamp(min=1)  # (T, B)
        self.mean, self.inverse = (scale.new_empty(len(real), *scale.shape) for _ in range(2))

    @property
    def kept(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.mean, self.inverse, self.row_weights

    def write(self, t: int, index: int, y: Tensor) -> Tensor:
        mean = torch.mv(y, self.row_weights[t], out=self.mean[t, index])
        y = y - mean.unsqueeze(1)
        torch.mv(y * y, self.row_weights[t], out=self.inverse[t, index]).add_(self.eps).rsqrt_()
        by = self.inverse[t, index] * self.scale[index]
        return torch.addcmul(self.shift[index].unsqueeze(1), y, by.unsqueeze(1))


class _CellGradients:
    """Backward pass of `_CellNorms`. `dscale` and `dshift` are complete after the last step."""

    def __init__(
        self, mean: Tensor, inverse: Tensor, row_weights: Tensor, scale: Tensor, shift: Tensor
    ) -> None:
        self.mean, self.inverse, self.row_weights, self.scale, self.shift = (
            mean,
            inverse,
            row_weights,
            scale,
            shift,
        )
        self.dscale, self.dshift = torch.zeros_like(scale), torch.zeros_like(shift)

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

"""Attention of a LARNN layer to a window of its memory, step by step, forward and backward, for `fast.py`."""

import torch
import torch.nn.functional as F
from torch import Tensor

from automl.tasks.sequence_classification.larnn.loop import Kind
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

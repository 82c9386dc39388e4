"""Batch norm of sequences that differ in length."""

import torch
from torch import Tensor, nn

from attention.padding import current_mask
from backbones import ends


class MaskedBatchNorm1d(nn.BatchNorm1d):
    """Batch norm over the real positions inside `attention.padding.padding`. It returns zeros at padding.

    Without padding it equals `nn.BatchNorm1d` and takes its arguments.

    Shape:
        `(B, C, N)` to the same shape.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Normalise `x`, `(B, C, N)`, over its real positions."""
        mask = current_mask(x.shape[0], x.shape[2:])
        if mask is None:
            return super().forward(x)
        if not self.training:
            return ends.without_padding(super().forward(x), mask)
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        count = self.total(mask.sum().to(wide.dtype)).clamp(min=1)
        mean = self.total(ends.without_padding(wide, mask).sum((0, 2))) / count
        centred = ends.without_padding(wide - mean[:, None], mask)
        variance = self.total(centred.square().sum((0, 2))) / count
        self._track(mean.detach(), variance.detach() * (count / (count - 1).clamp(min=1)))
        y = centred * (variance + self.eps).rsqrt()[:, None] * self.weight[:, None] + self.bias[:, None]
        return ends.without_padding(y, mask).to(x.dtype)

    def total(self, values: Tensor) -> Tensor:
        """Return sums over the whole batch, given those over this worker's part.

        Without other workers they are equal.
        """
        return values

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        assert self.momentum is not None
        self.num_batches_tracked += 1
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
        self.running_var.lerp_(variance.to(self.running_var.dtype), self.momentum)

"""Padded sequences: checks of input and mask, last state, mean, reversal and batch norm.

`mask` is False at padding, which is at the end of a sequence.
"""

import torch
from torch import Tensor, nn

from attention.padding import current_mask
from automl.base.errors import InputError
from backbones.torch_internals import AnyBatchNorm


def check(x: Tensor, mask: Tensor | None, channels: int) -> None:
    """Raise `InputError` unless `x` is `(B, channels, T)` and `mask` is None or bool `(B, T)`."""
    if x.ndim != 3 or x.shape[1] != channels:
        raise InputError(f"a sequence model takes (B, {channels}, T); got {tuple(x.shape)}")
    if mask is not None and (mask.dtype != torch.bool or mask.shape != (x.shape[0], x.shape[2])):
        raise InputError(
            f"a mask is bool (B, T) = {(x.shape[0], x.shape[2])}, True where a position is real; got "
            f"{str(mask.dtype).removeprefix('torch.')} {tuple(mask.shape)}"
        )


def without_padding(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return `x`, `(B, C, T)`, with zeros at padding, whatever is there, even NaN."""
    return x if mask is None else x.masked_fill(~mask.unsqueeze(1), 0.0)


def last(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return `x`, `(B, C, T)`, at the last real position of each sequence, `(B, C)`.

    In a causal model this is the state at the beginning of the padding. A sequence without real positions
    counts as one of length 1.
    """
    if mask is None:
        return x[:, :, -1]
    index = (mask.sum(1) - 1).clamp(min=0)  # (B,)
    return x.gather(2, index.view(-1, 1, 1).expand(-1, x.shape[1], 1)).squeeze(2)


def mean(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mean of `x`, `(B, C, T)`, over the real positions, `(B, C)`."""
    if mask is None:
        return x.mean(2)
    return without_padding(x, mask).sum(2) / mask.sum(1, keepdim=True).clamp(min=1).to(x.dtype)


def reverse(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return `x`, `(B, C, T)`, with the real positions in reverse order and the padding unchanged."""
    if mask is None:
        return x.flip(2)
    positions = torch.arange(x.shape[2], device=x.device)
    lengths = mask.sum(1, keepdim=True)  # (B, 1)
    index = torch.where(positions < lengths, lengths - 1 - positions, positions)  # (B, T)
    return x.gather(2, index.unsqueeze(1).expand(-1, x.shape[1], -1))


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
            return without_padding(super().forward(x), mask)
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        count = self.total(mask.sum().to(wide.dtype)).clamp(min=1)
        mean = self.total(without_padding(wide, mask).sum((0, 2))) / count
        centred = without_padding(wide - mean[:, None], mask)
        variance = self.total(centred.square().sum((0, 2))) / count
        track(self, mean.detach(), variance.detach() * (count / (count - 1).clamp(min=1)))
        y = centred * (variance + self.eps).rsqrt()[:, None] * self.weight[:, None] + self.bias[:, None]
        return without_padding(y, mask).to(x.dtype)

    def total(self, values: Tensor) -> Tensor:
        """Return sums over the whole batch, given this worker's. Without other workers they are equal."""
        return values


@torch.no_grad()
def track(norm: AnyBatchNorm, mean: Tensor, variance: Tensor) -> None:
    """Update the running statistics of a batch norm, as `nn.BatchNorm1d` does."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.num_batches_tracked is not None
    norm.num_batches_tracked += 1
    momentum = 1 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
    norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), momentum)
    norm.running_var.lerp_(variance.to(norm.running_var.dtype), momentum)

"""Batch norm over the batches of all workers. W workers then train as one worker does on the whole batch.

`torch.nn.SyncBatchNorm` does this on GPUs and rejects CPUs. These classes work with any process group. They
keep the module that they convert, with its parameters, buffers, hooks, children and names.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from backbones.padded import MaskedBatchNorm1d, track
from backbones.torch_internals import AnyBatchNorm


class SyncBatchNorm(AnyBatchNorm):
    """Batch norm with mean and variance over the inputs of all workers.

    Shape:
        `(B / workers, C, *spatial)` to the same shape. It must be equal on all workers.
    """

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return F.batch_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
            )
        x = input.float()  # Sums over many positions need float32.
        dims = [d for d in range(x.ndim) if d != 1]
        shape = [1, -1, *[1] * (x.ndim - 2)]
        count = x.numel() // x.shape[1] * dist.get_world_size()
        # The variance needs a second sum. As mean square minus square mean it would lose precision.
        mean = _Total.apply(x.sum(dims)) / count
        centred = x - mean.view(shape)
        variance = _Total.apply(centred.square().sum(dims)) / count
        if self.track_running_stats:
            track(self, mean.detach(), variance.detach() * count / max(1, count - 1))
        y = centred * (variance + self.eps).rsqrt().view(shape)
        if self.affine:
            y = y * self.weight.view(shape) + self.bias.view(shape)
        result: Tensor = y.to(input.dtype)
        return result


class Activated(nn.Module):
    """Norm with timm's activation after it, as in `timm.layers.BatchNormAct2d`."""

    act: nn.Module
    drop: nn.Module

    def forward(self, input: Tensor) -> Tensor:
        y: Tensor = self.act(self.drop(super().forward(input)))
        return y


class SyncBatchNormAct(Activated, SyncBatchNorm):
    """`SyncBatchNorm` with an activation."""


class SyncBatchNormActOnGPU(Activated, nn.SyncBatchNorm):
    """`torch.nn.SyncBatchNorm` with an activation."""


class SyncMaskedBatchNorm1d(MaskedBatchNorm1d, SyncBatchNorm):
    """Batch norm over the real positions of all workers' sequences. Without a mask it is `SyncBatchNorm`."""

    def total(self, values: Tensor) -> Tensor:
        y: Tensor = _Total.apply(values)
        return y


@torch.no_grad()
def average(*values: Tensor) -> None:
    """Replace each tensor by its mean over the workers."""
    for value in values:
        dist.all_reduce(value)
        value /= dist.get_world_size()


class _Total(torch.autograd.Function):
    """Sum over all workers. Each worker's input affects all outputs, so gradients are summed as well."""

    @staticmethod
    def forward(ctx: object, values: Tensor) -> Tensor:
        values = values.clone()
        dist.all_reduce(values)
        return values

    backward = forward


def synchronise(model: nn.Module) -> nn.Module:
    """Convert every batch norm of `model` to a synchronised one, in place.

    A module of its own with an attribute `average` gets the function that averages its statistics. Batch
    norms of images become torch's class on GPUs and the class of this module on CPUs. Those under padding
    masks become the class of this module everywhere.
    """
    on_gpu = any(parameter.is_cuda for parameter in model.parameters())
    for module in model.modules():
        if hasattr(module, "average"):
            module.__dict__["average"] = average
        elif isinstance(module, MaskedBatchNorm1d):
            module.__class__ = SyncMaskedBatchNorm1d
        elif isinstance(module, AnyBatchNorm):
            is_activated = hasattr(module, "act")
            if on_gpu:
                module.__class__ = SyncBatchNormActOnGPU if is_activated else nn.SyncBatchNorm
                module.__dict__["process_group"] = None  # all workers
            else:
                module.__class__ = SyncBatchNormAct if is_activated else SyncBatchNorm
    return model

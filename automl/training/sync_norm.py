"""Batch norm over the batches of all workers, so that W workers train what one would on the whole batch.

`torch.nn.SyncBatchNorm` does this on GPUs and refuses CPUs. This one works wherever a process group does, and
keeps the module it is made from: its parameters, buffers, hooks and children, and so every name.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from backbones.larnn import StepNorm, WindowNorm
from backbones.larnn_loop import Result
from backbones.norm import MaskedBatchNorm1d
from backbones.torch_internals import AnyBatchNorm


class SyncBatchNorm(AnyBatchNorm):
    """A batch norm that takes mean and variance over the inputs of all workers.

    All workers' inputs have the same shape, `(B / workers, C, *spatial)`.
    """

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return F.batch_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
            )
        x = input.float()  # sums over many positions
        dims = [d for d in range(x.ndim) if d != 1]
        shape = [1, -1, *[1] * (x.ndim - 2)]
        count = x.numel() // x.shape[1] * dist.get_world_size()
        # Two sums, one after the other: the variance as mean square minus square mean cancels.
        mean = _Total.apply(x.sum(dims)) / count
        centred = x - mean.view(shape)
        variance = _Total.apply(centred.square().sum(dims)) / count
        if self.track_running_stats:
            self._update(mean.detach(), variance.detach() * count / max(1, count - 1))
        y = centred * (variance + self.eps).rsqrt().view(shape)
        if self.affine:
            y = y * self.weight.view(shape) + self.bias.view(shape)
        output: Tensor = y.to(input.dtype)
        return output

    @torch.no_grad()
    def _update(self, mean: Tensor, variance: Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        momentum = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, momentum)
        self.running_var.lerp_(variance, momentum)

    def _check_input_dim(self, input: Tensor) -> None:
        pass


class SyncMaskedBatchNorm1d(MaskedBatchNorm1d, SyncBatchNorm):
    """The same over the real positions of all workers' sequences; without a mask, `SyncBatchNorm`."""

    def total(self, values: Tensor) -> Tensor:
        result: Tensor = _Total.apply(values)
        return result


class SyncWindowNorm(WindowNorm):
    """LARNN's norm of keys and values.

    Each worker trains with the statistics of its own part of the batch, as there are some at every step of a
    sequence. The running statistics are the mean over the workers.
    """

    def track(self, result: Result, mask: Tensor | None) -> None:
        super().track(result, mask)
        _average(self.running_mean, self.running_var)


class SyncStepNorm(StepNorm):
    """LARNN's norms of a step, synchronised as `SyncWindowNorm` is."""

    def track(self, result: Result, mask: Tensor | None) -> None:
        super().track(result, mask)
        _average(self.running_mean, self.running_var)


@torch.no_grad()
def _average(*values: Tensor) -> None:
    """Replace each by its mean over the workers."""
    for value in values:
        dist.all_reduce(value)
        value /= dist.get_world_size()


class _Total(torch.autograd.Function):
    """The sum over all workers. Each worker's input affected all outputs, so gradients are summed as well."""

    @staticmethod
    def forward(ctx: object, values: Tensor) -> Tensor:
        values = values.clone()
        dist.all_reduce(values)
        return values

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


def synchronise(model: nn.Module) -> nn.Module:
    """Make every batch norm of `model` a synchronised one, in place.

    That of images is torch's on GPUs and ours on CPUs, that under padding masks ours everywhere.
    """
    for module in model.modules():
        if isinstance(module, WindowNorm):
            module.__class__ = SyncWindowNorm
        elif isinstance(module, StepNorm):
            module.__class__ = SyncStepNorm
        elif isinstance(module, MaskedBatchNorm1d):
            module.__class__ = SyncMaskedBatchNorm1d
        elif isinstance(module, AnyBatchNorm):
            if next(module.parameters()).is_cuda:
                module.__class__ = nn.SyncBatchNorm
                module.__dict__["process_group"] = None  # all workers
            else:
                module.__class__ = SyncBatchNorm
    return model

"""The batch norms of a LARNN layer: statistics in training, folded into the weights in evaluation."""

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from automl.tasks.sequence_classification.larnn.loop import CellNorm, Norm, Result, Weights


class _Norm(nn.Module):
    """Parameters and running statistics of batch norms."""

    running_mean: Tensor
    running_var: Tensor
    # Averages the running statistics over several workers, see `automl.training.sync_norm`. Each worker
    # trains with those of its own part of the batch, since every step of a sequence has statistics of its
    # own.
    average: Callable[..., None] | None = None

    def __init__(self, *shape: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.weight, self.bias = nn.Parameter(torch.ones(shape)), nn.Parameter(torch.zeros(shape))
        self.register_buffer("running_mean", torch.zeros(shape))
        self.register_buffer("running_var", torch.ones(shape))

    def _average(self) -> None:
        if self.average is not None:
            self.average(self.running_mean, self.running_var)


class WindowNorm(_Norm):
    """Batch norm of the keys and values in a window, over its states and the batch."""

    def __init__(self, hidden: int) -> None:
        super().__init__(2 * hidden)
        self.bias = nn.Parameter(torch.zeros(hidden))  # The keys have no shift.

    def for_windows(self, x: Tensor, mask: Tensor | None) -> Norm:
        """Return the norm for training on `x`, (B, C, T).

        The initial state counts, and each state computed from a real input.
        """
        seen = x.new_ones(x.shape[2], x.shape[0])
        if mask is not None:
            seen[1:] = mask.t()[:-1]
        return Norm(weight=self.weight, bias=self.bias, seen=seen, eps=self.eps)

    @torch.no_grad()
    def track(self, result: Result, mask: Tensor | None) -> None:
        """Move the running statistics towards their mean over all steps with a real input."""
        assert result.mean is not None
        assert result.variance is not None
        weights_of_steps = _step_weights(result.mean, mask)
        self.running_mean.lerp_(weights_of_steps @ result.mean, self.momentum)
        self.running_var.lerp_(weights_of_steps @ result.variance, self.momentum)
        self._average()

    def fold(self, weights: Weights) -> Weights:
        """Return the weights of a layer with this norm folded in, for evaluation."""
        H = len(self.bias)
        scale = self.weight * (self.running_var + self.eps).rsqrt()  # (2H)
        shift = self.bias - self.running_mean[H:] * scale[H:]
        if weights.query is None:
            rows = F.pad(scale[:H], (4 * H, 0), value=1.0)
            weights = replace(weights, inputs=weights.inputs * rows.unsqueeze(1))
        else:
            weights = replace(weights, query=weights.query * scale[:H])
        if weights.output is not None:
            matrix, bias = weights.output[:, :H], weights.output[:, H] + weights.output[:, :H] @ shift
            return replace(weights, output=torch.cat([matrix * scale[H:], bias.unsqueeze(1)], 1))
        if weights.affine is not None:
            first, *others = weights.affine.unbind(0)  # of the attention's result
            first = torch.stack([first[0] * scale[H:], first[1] + first[0] * shift])
            return replace(weights, affine=torch.stack([first, *others]))
        shift_of_gates = F.pad(weights.attention @ shift, (0, H))
        return replace(
            weights,
            inputs=weights.inputs + F.pad(shift_of_gates.unsqueeze(1), (weights.inputs.shape[1] - 1, 0)),
            attention=weights.attention * scale[H:],
        )


class StepNorm(_Norm):
    """Batch norms of the attention's result, the cell and the hidden state, over the batch of a step."""

    def __init__(self, hidden: int) -> None:
        super().__init__(3, hidden)

    def for_steps(self, x: Tensor, mask: Tensor | None) -> CellNorm:
        """Return the norms for training on `x`, (B, C, T). Inputs at padding do not count."""
        real = x.new_ones(x.shape[2], x.shape[0]) if mask is None else mask.t().to(x.dtype)
        return CellNorm(weight=self.weight, bias=self.bias, real=real, eps=self.eps)

    @torch.no_grad()
    def track(self, result: Result, mask: Tensor | None) -> None:
        """Move the running statistics towards their mean over all steps with a real input."""
        assert result.cell_mean is not None
        assert result.cell_variance is not None
        weights_of_steps = _step_weights(result.cell_mean, mask)
        self.running_mean.lerp_(torch.tensordot(weights_of_steps, result.cell_mean, 1), self.momentum)
        self.running_var.lerp_(torch.tensordot(weights_of_steps, result.cell_variance, 1), self.momentum)
        self._average()

    def affine(self) -> Tensor:
        """Return scale and shift for evaluation, (3, 2, H)."""
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        return torch.stack([scale, self.bias - self.running_mean * scale], 1)


def _step_weights(statistics: Tensor, mask: Tensor | None) -> Tensor:
    """Return the weight of each of the steps `(T, ...)` in a mean over those with a real input."""
    real = statistics.new_ones(len(statistics)) if mask is None else mask.any(0).to(statistics.dtype)
    return real / real.sum().clamp(min=1)

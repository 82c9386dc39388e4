"""From disparities to metrics, over the pixels of batches and workers; and the loss that they are learned by.

A pixel counts where its true disparity is known and below the maximum.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from automl.config.runtime import Runtime
from automl.tasks.evaluator import Evaluator

# Of outputs from the first to the last one; the last one is what is evaluated.
WEIGHTS = {1: (1.0,), 3: (0.5, 0.7, 1.0)}
METRICS = ("epe", "error_1px", "error_3px", "d1")
D1_PIXELS, D1_SHARE = 3.0, 0.05  # KITTI's: wrong by more than 3 pixels and 5 % of the true disparity


def valid_pixels(truth: Tensor, maximum: int) -> Tensor:
    """The pixels that count, bool; unknown disparities are infinite."""
    return (truth >= 0) & (truth < maximum)


def disparity_loss(outputs: Sequence[Tensor], truth: Tensor, maximum: int, runtime: Runtime) -> Tensor:
    """The weighted sum of the mean smooth L1 losses of the outputs, each `(B, H, W)`, a scalar.

    The mean is over the pixels that count of all workers' batches, so that the mean of their gradients is
    that of the whole batch.
    """
    there = valid_pixels(truth, maximum)
    truth = truth.where(there, 0.0)
    count = runtime.total(there.sum().to(truth.dtype)) / runtime.workers
    losses = [
        F.smooth_l1_loss(output.where(there, 0.0), truth, reduction="sum") / count.clamp(min=1)
        for output in outputs
    ]
    return torch.stack([w * loss for w, loss in zip(WEIGHTS[len(losses)], losses, strict=True)]).sum()


class StereoEvaluator(Evaluator):
    """`epe`, the mean distance from the true disparity in pixels, and the shares of pixels that are wrong.

    `error_1px`, `error_3px`: by more than so many pixels. `d1`: KITTI's, by more than 3 pixels and 5 %.
    All are over all counted pixels of the split together.
    """

    def __init__(self, maximum: int, device: torch.device) -> None:
        self.maximum = maximum
        self.sums = torch.zeros(1 + len(METRICS), dtype=torch.float64, device=device)

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """outputs: `(B, H, W)`, at least as large as the targets, true disparities `(B, h, w)`."""
        height, width = targets.shape[1:]
        truth = targets[there := valid_pixels(targets, self.maximum)].double()
        wrong = (outputs[:, :height, :width][there].double() - truth).abs()
        d1 = (wrong > D1_PIXELS) & (wrong > D1_SHARE * truth)
        parts = [torch.ones_like(wrong), wrong, (wrong > 1).double(), (wrong > 3).double(), d1.double()]
        self.sums += torch.stack([part.sum() for part in parts])

    def compute(self, runtime: Runtime) -> dict[str, Tensor]:
        count, *sums = runtime.total(self.sums.clone())
        return {name: total / count for name, total in zip(METRICS, sums, strict=True)}

"""Metrics and loss of disparities, over the pixels of batches and workers.

Pixels with a known true disparity below the maximum are counted.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from automl.config.runtime import Runtime
from automl.task.evaluator import Evaluator

# Weights of the outputs, in order. Only the last output is evaluated.
WEIGHTS = {1: (1.0,), 3: (0.5, 0.7, 1.0)}
METRICS = ("epe", "error_1px", "error_3px", "d1")
D1_PIXELS, D1_SHARE = 3.0, 0.05  # KITTI's: wrong by more than 3 pixels and 5 % of the true disparity


def valid_pixels(truth: Tensor, maximum: int) -> Tensor:
    """Return the pixels that are counted, bool. Unknown disparities are infinite."""
    return (truth >= 0) & (truth < maximum)


def disparity_loss(outputs: Sequence[Tensor], truth: Tensor, maximum: int, runtime: Runtime) -> Tensor:
    """Return the weighted sum of the mean smooth L1 losses of the outputs, each `(B, H, W)`, a scalar.

    The mean is over the counted pixels of all workers, so that the mean of their gradients is that of the
    whole batch.
    """
    is_valid = valid_pixels(truth, maximum)
    truth = truth.where(is_valid, 0.0)
    count = runtime.total(is_valid.sum().to(truth.dtype)) / runtime.workers
    losses = [
        F.smooth_l1_loss(output.where(is_valid, 0.0), truth, reduction="sum") / count.clamp(min=1)
        for output in outputs
    ]
    return torch.stack([w * loss for w, loss in zip(WEIGHTS[len(losses)], losses, strict=True)]).sum()


class StereoEvaluator(Evaluator):
    """Evaluator of disparities.

    `epe` is the mean error of disparities in pixels. `error_1px`, `error_3px` and `d1` are fractions of wrong
    pixels: with an error above 1 pixel, above 3 pixels, or (KITTI's d1) above 3 pixels and 5 %. All are over
    the counted pixels of the whole split.
    """

    def __init__(self, maximum: int, device: torch.device) -> None:
        self.maximum = maximum
        self.sums = torch.zeros(1 + len(METRICS), dtype=torch.float64, device=device)

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Add disparities `(B, H, W)`, at least as large as the true disparities `(B, h, w)`."""
        height, width = targets.shape[1:]
        truth = targets[is_valid := valid_pixels(targets, self.maximum)].double()
        errors = (outputs[:, :height, :width][is_valid].double() - truth).abs()
        d1 = (errors > D1_PIXELS) & (errors > D1_SHARE * truth)
        terms = [torch.ones_like(errors), errors, (errors > 1).double(), (errors > 3).double(), d1.double()]
        self.sums += torch.stack([term.sum() for term in terms])

    def compute(self, runtime: Runtime) -> dict[str, Tensor]:
        count, *sums = runtime.total(self.sums.clone())
        return {name: total / count for name, total in zip(METRICS, sums, strict=True)}

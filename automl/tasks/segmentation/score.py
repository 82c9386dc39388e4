"""Metrics and loss of segmentation from the logits of pixels, over batches and workers.

Pixels labelled IGNORE are not counted. Means over classes are over those that have pixels.
"""

import numpy as np
import torch
from torch import Tensor

from automl.config.runtime import Runtime
from automl.storage.trial_files import Answers
from automl.task.evaluator import Evaluator
from automl.tasks.segmentation.data import IGNORE
from search.class_statistics import pseudo_values


def segmentation_loss(logits: Tensor, truth: Tensor, runtime: Runtime) -> Tensor:
    """Return cross-entropy plus Dice loss of logits `(B, C, H, W)` and labels `(B, H, W)`, a scalar.

    It is computed over the pixels of all workers, and the mean of the workers' gradients is its gradient.
    Source of the Dice loss: F. Milletari et al., V-Net (2016), arXiv 1606.04797, here without squares.
    """
    hot = truth[:, None] == torch.arange(logits.shape[1], device=truth.device).view(-1, 1, 1)
    log_p = logits.log_softmax(1)
    p = log_p.exp() * (truth != IGNORE)[:, None]
    local = torch.stack([term.sum((0, 2, 3)) for term in (-log_p * hot, p * hot, p, hot.to(p.dtype))])
    total = runtime.total(local.detach().clone()) + runtime.workers * (local - local.detach())
    surprise, overlap, answered, true = total
    dice = _mean(
        2 * overlap / (answered + true).clamp(min=1), true
    ).nan_to_num()  # NaN if no pixel is counted
    y: Tensor = surprise.sum() / true.sum().clamp(min=1) + 1 - dice
    return y


def pixel_metrics(counts: Tensor) -> dict[str, Tensor]:
    """Return metrics `(...)` from right, true and answered pixels per class, `(..., 3, classes)`."""
    right, true, answered = counts.unbind(-2)
    return {
        "miou": _mean(right / (true + answered - right), true),
        "pixel_accuracy": right.sum(-1) / true.sum(-1),
        "dice": _mean(2 * right / (true + answered), true),
    }


def _mean(values: Tensor, true: Tensor) -> Tensor:
    return values.where(true > 0, 0.0).sum(-1) / (true > 0).sum(-1)


class SegmentationEvaluator(Evaluator):
    """Evaluator of the classes of pixels.

    The metrics are `miou` (mean intersection over union of the classes), `dice` (their mean Dice score) and
    `pixel_accuracy`. All are over the pixels of the whole split together. `metric` is the one whose values
    `answers` has.
    """

    def __init__(self, metric: str) -> None:
        self.metric = metric
        self.counts: list[Tensor] = []  # for each image, as in `pixel_metrics`

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Add logits `(B, classes, H, W)` and labels `(B, H, W)`."""
        size, answered, is_counted = outputs.shape[:2], outputs.argmax(1), targets != IGNORE
        first = size[1] * torch.arange(size[0], device=targets.device).view(-1, 1, 1)
        pairs = (targets, is_counted & (answered == targets)), (targets, is_counted), (answered, is_counted)
        counts = [
            (labels + first)[selected].bincount(minlength=size.numel()).view(size)
            for labels, selected in pairs
        ]
        self.counts.append(torch.stack(counts, 1).double())

    def compute(self, runtime: Runtime) -> dict[str, Tensor]:
        return pixel_metrics(runtime.total(torch.cat(self.counts).sum(0)))

    def answers(self, runtime: Runtime) -> Answers:
        """Return the pseudo-value of each image, from the metric without it."""
        gathered = runtime.gather((torch.cat(list(self.index)).cpu(), torch.cat(self.counts).cpu()))
        index, counts = (torch.cat(list(tensors)) for tensors in zip(*gathered, strict=True))
        total = counts.sum(0, keepdim=True)
        values = pixel_metrics(torch.cat([total, total - counts[index.argsort()]]))[self.metric].numpy()
        return Answers(values=pseudo_values(np.nan_to_num(values), np.isfinite(values)))

"""From a model's outputs to metrics, batch by batch and over all workers."""

from abc import ABC, abstractmethod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from automl.config.runtime import Runtime


class Evaluator(ABC):
    """Collects outputs of one pass over a split.

    What cannot be summed, such as ranks over the whole split, keeps what it needs of each part and calls
    `runtime.gather` in `compute`.
    """

    @abstractmethod
    def update(self, outputs: Any, targets: Any) -> Tensor:
        """Take in the outputs for a part of the split.

        Returns for each input whether it was answered right, `(B,)`, where the metric is a share of right
        answers. What it returns elsewhere is not read.
        """

    @abstractmethod
    def compute(self, runtime: Runtime) -> dict[str, Tensor]:
        """The metrics of all parts of all workers, numbers that are still on the device."""


class ClassificationEvaluator(Evaluator):
    """`accuracy`, and the cross-entropy as `loss`. inputs: of the whole split."""

    def __init__(self, inputs: int, device: torch.device) -> None:
        self.inputs = inputs
        self.sums = torch.zeros(2, device=device)

    def update(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """outputs: logits `(B, classes)`. targets: labels, int64 `(B,)`."""
        logits = outputs.float()
        correct = logits.argmax(1) == targets
        self.sums += torch.stack([correct.sum().float(), F.cross_entropy(logits, targets, reduction="sum")])
        return correct

    def compute(self, runtime: Runtime) -> dict[str, Tensor]:
        accuracy, loss = runtime.total(self.sums) / self.inputs
        return {"accuracy": accuracy, "loss": loss}

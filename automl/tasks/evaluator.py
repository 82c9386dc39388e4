"""From a model's outputs to metrics, batch by batch and over all workers."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from automl.config.runtime import Runtime
from automl.storage.answers import Answers
from automl.tasks.class_metrics import auc, check_classes, of_counts, pseudo_values
from search.metric import AUC, LOSS, Metric

SCORES = 2**20  # numbers up to which areas under the curve are computed unasked; sorting them takes 0.2 s


class Evaluator(ABC):
    """Collects outputs of one pass over a split.

    What cannot be summed, such as ranks over the whole split, keeps what it needs of each part and calls
    `runtime.gather` in `compute`.

    index: the numbers of the inputs that were taken in, batch by batch, each int64 `(B,)`.
    """

    index: Sequence[Tensor] = ()

    @abstractmethod
    def update(self, outputs: Any, targets: Any) -> None:
        """Take in the outputs for a part of the split."""

    @abstractmethod
    def compute(self, runtime: Runtime) -> dict[str, Tensor]:
        """The metrics of all parts of all workers, numbers that are still on the device."""

    def answers(self, runtime: Runtime) -> Answers | None:
        """The answers to all inputs of the split, of all workers; None where answers are no labels."""
        return None


class ClassificationEvaluator(Evaluator):
    """`accuracy`, `balanced_accuracy`, `macro_f1`, and the cross-entropy as `loss`.

    `auc`, too, where that is the primary metric, or there are at most SCORES probabilities to rank, and of
    more than one class.

    labels: of the classes. counts: the inputs of each in the whole split.
    """

    def __init__(
        self, labels: Sequence[str], counts: Sequence[int], metric: Metric, device: torch.device
    ) -> None:
        check_classes(metric, counts)
        self.labels, self.metric, self.inputs = labels, metric, sum(counts)
        several = sum(count > 0 for count in counts) > 1
        self.keeps = metric.name in (AUC.name, LOSS.name)  # the logits, of which each input's part is made
        self.ranks = metric.name == AUC.name or (several and self.inputs * len(labels) <= SCORES)
        self.sums = torch.zeros(2 + 3 * len(labels), dtype=torch.float64, device=device)
        self.true: list[Tensor] = []
        self.answered: list[Tensor] = []
        self.logits: list[Tensor] = []

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """outputs: logits `(B, classes)`. targets: labels, int64 `(B,)`."""
        logits = outputs.float()
        answered = logits.argmax(1)
        correct = (answered == targets).double()
        loss = F.cross_entropy(logits, targets, reduction="sum").double()
        self.sums[:2] += torch.stack([correct.sum(), loss])
        right, inputs, answers = self.sums[2:].view(3, -1)
        right.index_add_(0, targets, correct)
        inputs.index_add_(0, targets, torch.ones_like(correct))
        answers.index_add_(0, answered, torch.ones_like(correct))
        self.true.append(targets)
        self.answered.append(answered)
        if self.ranks or self.keeps:
            self.logits.append(logits)

    def compute(self, runtime: Runtime) -> dict[str, Tensor]:
        sums = runtime.total(self.sums.clone())
        accuracy, loss = sums[:2] / self.inputs
        found = {"accuracy": accuracy, "loss": loss, **of_counts(sums[2:].view(3, -1))}
        if self.ranks:
            logits, true = torch.cat(self.logits), torch.cat(self.true)
            if runtime.workers > 1:
                parts = runtime.gather((logits.cpu(), true.cpu()))
                logits, true = (torch.cat(part) for part in zip(*parts, strict=True))
            found["auc"] = auc(logits, true).to(sums.device)
        return found

    def answers(self, runtime: Runtime) -> Answers:
        mine = [torch.cat(list(part)).cpu() for part in (self.index, self.true, self.answered)]
        mine += [torch.cat(self.logits).cpu()] if self.keeps else []
        parts = [torch.cat(part) for part in zip(*runtime.gather(mine), strict=True)]
        order = parts[0].argsort()
        true, answered, *logits = (part[order] for part in parts[1:])
        values = pseudo_values(self.metric, true.numpy(), answered.numpy(), logits[0] if logits else None)
        return Answers(labels=self.labels, true=true.numpy(), answered=answered.numpy(), values=values)

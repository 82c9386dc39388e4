"""From a model's outputs to metrics, batch by batch and over all workers."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from attention import InputError
from automl.config.runtime import Runtime
from automl.storage.answers import Answers
from search.class_metrics import ClassMetric
from search.metric import Metric

SCORES = 2**20  # logits up to which areas under the curve are computed unasked; sorting them takes 0.2 s


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
    """The metrics of a task that classifies.

    Those that take the whole split at once are computed where that is the primary one, or there are at most
    SCORES logits. Those that have no value on the split are left out.

    labels: of the classes. counts: the inputs of each in the whole split.
    metrics: of the task, each a `ClassMetric`. primary: the one that `answers` go by.
    """

    def __init__(
        self,
        labels: Sequence[str],
        counts: Sequence[int],
        primary: Metric,
        metrics: Sequence[Metric],
        device: torch.device,
    ) -> None:
        self.labels, self.device = labels, device
        self.primary, *others = (_class_metric(metric) for metric in (primary, *metrics))
        if problem := self.primary.problem(counts):
            raise InputError(problem)
        self.inputs = sum(counts)
        cheap = self.inputs * len(labels) <= SCORES
        usable = [m for m in others if not m.problem(counts) and (cheap or not m.whole)]
        self.metrics = list(dict.fromkeys((*usable, self.primary)))
        self.sums: dict[ClassMetric, Tensor] = {}
        self.seen: list[Sequence[Tensor]] = []  # labels, answers, what the primary metric keeps
        self.logits: list[Tensor] = []

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """outputs: logits `(B, classes)`. targets: labels, int64 `(B,)`."""
        logits = outputs.float()
        for metric in self.metrics:
            if not metric.whole:
                new = metric.update(logits, targets)
                self.sums[metric] = self.sums[metric] + new if metric in self.sums else new
        self.seen.append((targets, logits.argmax(1), self.primary.keep(logits, targets)))
        if any(metric.whole for metric in self.metrics):
            self.logits.append(logits)

    def compute(self, runtime: Runtime) -> dict[str, Tensor]:
        statistics = {metric: runtime.total(sums.clone()) for metric, sums in self.sums.items()}
        if self.logits:
            logits, labels = torch.cat(self.logits), torch.cat([labels for labels, *_ in self.seen])
            if runtime.workers > 1:
                parts = runtime.gather((logits.cpu(), labels.cpu()))
                logits, labels = (torch.cat(part) for part in zip(*parts, strict=True))
            whole = (metric for metric in self.metrics if metric.whole)
            statistics |= {metric: metric.update(logits, labels).to(self.device) for metric in whole}
        return {metric.name: metric.compute(statistics[metric], self.inputs) for metric in self.metrics}

    def answers(self, runtime: Runtime) -> Answers:
        mine = [torch.cat(list(part)).cpu() for part in (self.index, *zip(*self.seen, strict=True))]
        parts = [torch.cat(part) for part in zip(*runtime.gather(mine), strict=True)]
        order = parts[0].argsort()
        true, answered, kept = (part[order] for part in parts[1:])
        values = self.primary.per_example(kept, true)
        return Answers(labels=self.labels, true=true.numpy(), answered=answered.numpy(), values=values)


def _class_metric(metric: Metric) -> ClassMetric:
    if not isinstance(metric, ClassMetric):
        raise InputError(f"metric {metric.name!r} of classes must be a search.class_metrics.ClassMetric")
    return metric

"""Evaluators: compute metrics from a model's outputs, batch by batch and over all workers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from automl.base.errors import InputError
from automl.config.runtime import Runtime
from automl.storage.trial_files import Answers
from search.class_metrics import ClassMetric
from search.metric import Metric

# Areas under the curve are computed by default up to this number of logits. Sorting them takes 0.2 s.
SCORES = 2**20


class Evaluator(ABC):
    """Base class of evaluators, which collect the outputs of one pass over a split.

    Metrics that cannot be summed, such as ranks over the whole split, keep what they need of each batch and
    call `runtime.gather` in `compute`.

    Attributes:
        index: The numbers of the inputs, batch by batch, each int64 `(B,)`.
    """

    index: Sequence[Tensor] = ()

    @abstractmethod
    def update(self, outputs: Any, targets: Any) -> None:
        """Add the outputs of a batch.

        Args:
            outputs: The outputs of the model.
            targets: The targets of the batch.
        """

    @abstractmethod
    def compute(self, runtime: Runtime) -> dict[str, Tensor]:
        """Return the metrics over all batches and workers.

        Args:
            runtime: The workers.

        Returns:
            The metrics, scalars on the device.
        """

    def answers(self, runtime: Runtime) -> Answers | None:
        """Return the answers to all inputs of the split, of all workers, or None.

        Args:
            runtime: The workers.

        Returns:
            The answers, or None if the task has no answers to store.
        """
        return None


class ClassificationEvaluator(Evaluator):
    """Evaluator of classes, or of what else a `ClassMetric` scores. Then there are no `labels`.

    Metrics that take the whole split at once are computed only if one is the primary metric, or there are at
    most SCORES logits. Metrics without a value on the split are left out.

    Attributes:
        metrics: The metrics that are computed.
        primary: The metric whose values `answers` has.
        inputs: The number of inputs of the whole split.
    """

    def __init__(
        self,
        labels: Sequence[str],
        counts: Sequence[int],
        primary: Metric,
        metrics: Sequence[Metric],
        device: torch.device,
        decode: Callable[[Tensor], Tensor] = lambda outputs: outputs,
    ) -> None:
        self.labels, self.device, self.decode = labels, device, decode
        others = [metric for metric in (primary, *metrics) if isinstance(metric, ClassMetric)]
        if wrong := [m.name for m in (primary, *metrics) if not isinstance(m, ClassMetric)]:
            raise InputError(f"metric {wrong[0]!r} of classes must be a search.class_metrics.ClassMetric")
        self.primary = others.pop(0)
        if problem := self.primary.problem(counts):
            raise InputError(problem)
        self.inputs = sum(counts)
        cheap = self.inputs * max(1, len(labels)) <= SCORES
        usable = [m for m in others if not m.problem(counts) and (cheap or not m.whole)]
        self.metrics = list(dict.fromkeys((*usable, self.primary)))
        self.sums: dict[ClassMetric, Tensor] = {}
        self.seen: list[Sequence[Tensor]] = []  # labels, answers, what the primary metric keeps
        self.logits: list[Tensor] = []

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Add logits `(B, classes)` and labels, int64 `(B,)`."""
        logits = self.decode(outputs.float())
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
                gathered = runtime.gather((logits.cpu(), labels.cpu()))
                logits, labels = (torch.cat(tensors) for tensors in zip(*gathered, strict=True))
            whole_metrics = (metric for metric in self.metrics if metric.whole)
            statistics |= {metric: metric.update(logits, labels).to(self.device) for metric in whole_metrics}
        return {metric.name: metric.compute(statistics[metric], self.inputs) for metric in self.metrics}

    def answers(self, runtime: Runtime) -> Answers:
        own = [torch.cat(list(column)).cpu() for column in (self.index, *zip(*self.seen, strict=True))]
        columns = [torch.cat(column) for column in zip(*runtime.gather(own), strict=True)]
        order = columns[0].argsort()
        true, answered, kept = (column[order] for column in columns[1:])
        values = self.primary.per_example(kept, true)
        if not self.labels:
            return Answers(values=values)
        return Answers(labels=self.labels, true=true.numpy(), answered=answered.numpy(), values=values)

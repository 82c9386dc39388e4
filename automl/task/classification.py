"""Base class of classification tasks: the loss, the metrics, and the inputs of each class."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import TypeVar

from automl.base.serialise import to_json
from automl.config.runtime import Runtime
from automl.task.base import Batch, DataT_co, RecordTask
from automl.task.checks import ModelCheck, check_backbone
from automl.task.evaluator import ClassificationEvaluator
from automl.task.task_data import Split
from backbones import call
from search.config import Model, TrialConfig
from search.config.sections import ClassificationTraining, ClassWeights

ClassTrainingT_co = TypeVar(
    "ClassTrainingT_co", bound=ClassificationTraining, default=ClassificationTraining, covariant=True
)


class Classification(RecordTask[DataT_co, Model, ClassTrainingT_co]):
    """Classification by cross-entropy, with the metrics of `ClassificationEvaluator`.

    A training batch is the model's inputs and their labels. If inputs are mixed, it also has the labels of
    the other inputs and the weights of the first ones.

    Attributes:
        images: True if inputs are images, which can be in channels_last.
    """

    images: ClassVar[bool] = False
    learned = ("accuracy",)

    def __init__(self, config: TrialConfig, runtime: Runtime) -> None:
        super().__init__(config, runtime)
        self.batch_size = self.shared_batch_size()
        counts = self.class_counts("train")
        self.class_weights = compute_class_weights(self.training.class_weights, counts, runtime.device)

    @abstractmethod
    def opened(self, split: Split) -> Any:
        """Return the inputs of a split, with their `labels`, int64 `(N,)`, and the names of the `classes`."""

    @abstractmethod
    def plain(self) -> nn.Module:
        """Build the model without its placement, on the CPU."""

    def check(self) -> ModelCheck:
        """Try the backbone, once in a process. Built-in backbones need no trial."""
        return check_backbone(
            self.chosen,
            [to_json(self.data)],
            self.plain,
            lambda count: torch.rand_like(self.example(count)) if self.images else self.example(count),
            self.runtime,
            images=self.images,
            classes=len(self.labels),
        )

    @property
    def labels(self) -> list[str]:
        return list(self.opened("train").classes)

    def size(self, split: Split) -> int:
        return len(self.opened(split))

    def notes(self) -> Sequence[str]:
        return self.check().notes

    def class_counts(self, split: Split) -> Sequence[int]:
        values: Sequence[int] = self.opened(split).labels.bincount(minlength=len(self.labels)).tolist()
        return values

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return self.learn(model, batch)[0]

    def learn(self, model: nn.Module, batch: Batch) -> Tensor:
        inputs, labels, *others = batch
        mixed = (others[0], others[1]) if others else None
        logits = call(model, inputs).float()
        loss = cross_entropy(
            logits,
            labels,
            smoothing=self.training.label_smoothing,
            weights=self.class_weights,
            runtime=self.runtime,
            mixed=mixed,
        )
        return torch.stack([loss, accuracy(logits, labels, mixed)])

    def evaluator(self, split: Split) -> ClassificationEvaluator:
        counts, metrics = self.class_counts(split), self.spec.metrics
        return ClassificationEvaluator(self.labels, counts, self.metric, metrics, self.runtime.device)


def compute_class_weights(kind: ClassWeights, counts: Sequence[int], device: torch.device) -> Tensor | None:
    """Return the weight of each class in the loss, `(classes,)`, or None for equal weights.

    `balanced` is n / (k n_c) for the k classes with training inputs, so that the mean over inputs is 1 (G.
    King and L. Zeng, Logistic regression in rare events data (2001)). `counts` holds the training inputs per
    class.
    """
    if kind == "none":
        return None
    n_c = torch.tensor(counts, dtype=torch.float32)
    present = n_c > 0
    return (n_c.sum() / (present.sum() * n_c)).where(present, 0.0).to(device)


def accuracy(logits: Tensor, labels: Tensor, mixed: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """Return the fraction of inputs for which the largest of the logits `(B, classes)` is the label's,
    `(B,)`.

    `mixed` is as in `cross_entropy`. A mixed input has the label with the larger weight.
    """
    if mixed is not None:
        other, weight = mixed
        labels = labels.where(weight >= 0.5, other)
    return (logits.detach().argmax(1) == labels).to(logits.dtype).mean()


def cross_entropy(
    logits: Tensor,
    labels: Tensor,
    *,
    smoothing: float,
    weights: Tensor | None,
    runtime: Runtime,
    mixed: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Return the mean loss of logits `(B, classes)` and labels `(B,)`.

    For inputs mixed of two, `mixed` holds the label of the second and the weight of the first, each `(B,)`.
    With class weights it is the weighted mean, as in `torch.nn.CrossEntropyLoss`: the sum over labels of
    mixing weight times class weight times loss, divided by the sum of mixing weight times class weight. The
    divisor is that of all workers' batch, so that the mean of their gradients is the gradient of the whole
    batch.
    """
    if weights is None and mixed is None:
        return F.cross_entropy(logits, labels, label_smoothing=smoothing)
    terms = [(labels, torch.ones_like(logits[:, 0]))]
    if mixed is not None:
        other, fraction = mixed
        terms = [(labels, fraction), (other, 1 - fraction)]
    losses = sum(
        (
            fraction * F.cross_entropy(logits, label, weights, reduction="none", label_smoothing=smoothing)
            for label, fraction in terms
        ),
        start=torch.zeros_like(logits[:, 0]),
    )
    if weights is None:
        return losses.mean()
    total = sum(((fraction * weights[label]).sum() for label, fraction in terms), start=weights.new_zeros(()))
    return losses.sum() / (runtime.total(total) / runtime.workers)


def spread_over_classes(labels: Tensor, count: int) -> Tensor:
    """Return the indices of the first inputs: the first of each class, then the second of each, int64."""
    order = labels.argsort(stable=True)
    counts = labels.bincount()
    rank = torch.arange(len(labels)) - (counts.cumsum(0) - counts)[labels[order]]
    return order[rank.argsort(stable=True)][:count]

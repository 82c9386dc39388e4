"""Base class of classification tasks, and the target: what is learned of each input, classes by default."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import TypeVar

from automl.base.errors import InputError
from automl.base.serialise import to_json
from automl.config.runtime import Runtime
from automl.task.base import Batch, DataT_co, RecordTask
from automl.task.checks import ModelCheck, check_backbone
from automl.task.evaluator import ClassificationEvaluator
from automl.task.task_data import Split
from backbones import call
from search.class_metrics import ClassMetric
from search.config import Model, TrialConfig
from search.config.sections import ClassificationTraining, ClassWeights
from search.metric import Chance, Metric

ClassTrainingT_co = TypeVar(
    "ClassTrainingT_co", bound=ClassificationTraining, default=ClassificationTraining, covariant=True
)


Mixed = tuple[Tensor, Tensor] | None  # of mixed inputs: targets of the second ones, weights of the first ones


@dataclass(frozen=True, kw_only=True)
class Target(ABC):
    """Target that a model learns of each input: the outputs of its head, the loss, and the metrics.

    Attributes:
        kind: The name of the kind, which its metrics have as `target`.
        names: The names of the head's outputs.
        learned: The names of the values that `learn` returns beside the loss.
        mixes: True if two inputs can be mixed, with the weighted mean of their losses.
    """

    kind: ClassVar[str]
    learned: ClassVar[Sequence[str]] = ()
    mixes: ClassVar[bool] = True
    names: tuple[str, ...] = ()

    @property
    def classes(self) -> list[str]:
        """Return the names of the classes. Empty if an input has not exactly one of them."""
        return []

    def metrics(self, known: Sequence[Metric]) -> list[Metric]:
        """Return those of the known metrics that score this kind of target, the default first."""
        return [metric for metric in known if getattr(metric, "target", self.kind) == self.kind]

    def counts(self, targets: Tensor) -> list[int]:
        """Return the number of targets of each class. Without classes, that of all."""
        return [len(targets)]

    def weigh(self, kind: ClassWeights, targets: Tensor) -> Tensor | None:
        """Return the weight of each output in the loss, by the training targets. None for equal weights."""
        if kind != "none":
            raise InputError(f"--class-weights {kind} is not for {self.kind}; leave it out")
        return None

    @abstractmethod
    def learn(self, outputs: Tensor, targets: Tensor, mixed: Mixed, task: "Classification[Any]") -> Tensor:
        """Return the mean loss of a batch, followed by the values that `learned` names."""

    def decode(self, outputs: Tensor) -> Tensor:
        """Return outputs `(B, K)` as metrics take them."""
        return outputs


@dataclass(frozen=True, kw_only=True)
class Classes(Target):
    """One class of several, an int64 index `(B,)`: cross-entropy."""

    kind = "classes"
    learned = ("accuracy",)

    @property
    def classes(self) -> list[str]:
        return list(self.names)

    def counts(self, targets: Tensor) -> list[int]:
        return list(targets.bincount(minlength=len(self.names)).tolist())

    def weigh(self, kind: ClassWeights, targets: Tensor) -> Tensor | None:
        """Return None or, for `balanced`, n / (k n_c) for the k classes with training inputs, n_c of class c.

        The mean over inputs is then 1 (G. King and L. Zeng, Logistic regression in rare events data (2001)).
        """
        if kind == "none":
            return None
        n_c = torch.tensor(self.counts(targets), dtype=torch.float32)
        present = n_c > 0
        return (n_c.sum() / (present.sum() * n_c)).where(present, 0.0)

    def learn(self, outputs: Tensor, targets: Tensor, mixed: Mixed, task: "Classification[Any]") -> Tensor:
        smoothing = task.training.label_smoothing
        loss = cross_entropy(outputs, targets, smoothing, task.class_weights, task.runtime, mixed)
        return torch.stack([loss, accuracy(outputs, targets, mixed)])


class Classification(RecordTask[DataT_co, Model, ClassTrainingT_co]):
    """Prediction of a `Target`, with the metrics of `ClassificationEvaluator`.

    A training batch is the model's inputs and their targets. If inputs are mixed, it also has the targets of
    the other inputs and the weights of the first ones.

    Attributes:
        images: True if inputs are images, which can be in channels_last.
        target: What is learned of each input.
    """

    images: ClassVar[bool] = False

    def __init__(self, config: TrialConfig, runtime: Runtime) -> None:
        super().__init__(config, runtime)
        self.target = self.find_target()
        self.learned = self.target.learned
        known = self.target.metrics(self.spec.metrics)
        named = [metric for metric in known if config.metric in ("", metric.name)]
        if not named:
            names = ", ".join(metric.name for metric in known)
            raise InputError(
                f"--metric must be one of {names} for data of {self.target.kind}; got {config.metric}"
            )
        self.metric = named[0]
        self.batch_size = self.shared_batch_size()
        weights = self.target.weigh(self.training.class_weights, self.targets("train"))
        self.class_weights = None if weights is None else weights.to(runtime.device)

    @abstractmethod
    def opened(self, split: Split) -> Any:
        """Return the inputs of a split, with their `labels`, int64 `(N,)`, and the names of the `classes`."""

    def find_target(self) -> Target:
        """Return what is learned: by default the class of each input."""
        return Classes(names=tuple(self.opened("train").classes))

    def targets(self, split: Split) -> Tensor:
        """Return the targets of a split on the CPU: by default labels."""
        values: Tensor = self.opened(split).labels
        return values

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
            classes=len(self.target.names),
        )

    @property
    def labels(self) -> list[str]:
        return self.target.classes

    def size(self, split: Split) -> int:
        return len(self.opened(split))

    def notes(self) -> Sequence[str]:
        return self.check().notes

    def class_counts(self, split: Split) -> Sequence[int]:
        return self.target.counts(self.targets(split)) if self.labels else ()

    def chance(self, split: Split) -> Chance | None:
        if not self.labels and isinstance(self.metric, ClassMetric):
            return self.metric.chance_of(self.targets(split))
        population = torch.cat([self.targets("train"), self.targets("validation")])
        return self.metric.chance(self.target.counts(self.targets(split)), self.target.counts(population))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return self.learn(model, batch)[0]

    def learn(self, model: nn.Module, batch: Batch) -> Tensor:
        inputs, targets, *others = batch
        return self.target.learn(
            call(model, inputs).float(),
            targets,
            (others[0], others[1]) if others else None,
            self,
        )

    def evaluator(self, split: Split) -> ClassificationEvaluator:
        return ClassificationEvaluator(
            self.labels,
            self.target.counts(self.targets(split)),
            self.metric,
            self.target.metrics(self.spec.metrics),
            self.runtime.device,
            self.target.decode,
        )


def accuracy(logits: Tensor, labels: Tensor, mixed: Mixed = None) -> Tensor:
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
    smoothing: float,
    weights: Tensor | None,
    runtime: Runtime,
    mixed: Mixed = None,
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

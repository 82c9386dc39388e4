"""Metrics of classes, of several labels, and of numbers. Each computes itself and the score of guessing.

A user-defined metric is an instance of a subclass, in the file of a task that lists it among its `metrics`.
Configurations import this module, so it imports PyTorch and NumPy only where they are used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import sqrt
from typing import TYPE_CHECKING, Any, ClassVar

from automl.base.errors import InputError
from search.metric import GUESSING_RATE, Chance, Metric

if TYPE_CHECKING:
    from torch import Tensor

    from search.class_statistics import Floats


class ClassMetric(Metric, ABC):
    """Metric that is computed from logits `(B, classes)` and labels, int64 `(B,)`.

    Those of labels take logits and labels of 0 and 1 `(B, labels)`. Those of numbers take numbers `(B, 1)`.

    Attributes:
        target: What it scores: `classes`, `labels` or `numbers`.
        whole: True if `update` takes a whole split at once, since statistics of batches do not add up.
    """

    target: ClassVar[str] = "classes"
    whole: ClassVar[bool] = False

    @abstractmethod
    def update(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the statistics of a batch, float64. They are added over batches and workers."""

    @abstractmethod
    def compute(self, statistics: Tensor, inputs: int) -> Tensor:
        """Return the metric, a scalar, from the sum of all statistics of a split and its number of inputs."""

    def keep(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the values of a batch that `per_example` needs, `(B, ...)`. By default, the logits."""
        return logits

    @abstractmethod
    def per_example(self, kept: Tensor, labels: Tensor) -> Floats:
        """Return the contribution of each input of a split, `(N,)`.

        These are the pseudo-values of J. Tukey's jackknife: N times the metric, less N - 1 times the metric
        without the input. For a mean over inputs they are the averaged values. For other metrics, the
        variance of their mean is that of the metric (B. Efron and C. Stein, The jackknife estimate of
        variance (1981)). `kept` has the values that `keep` returned, of the whole split, on the CPU.
        """

    def chance_of(self, targets: Tensor) -> Chance | None:
        """Return the score of guessing on a split of labels or numbers `(N, K)`, or None if it is unknown."""
        return self.chance([len(targets)])

    def problem(self, counts: Sequence[int]) -> str:
        """Return why the metric has no value on a split with these inputs of each class, or an empty text."""
        return ""


class MeanMetric(ClassMetric):
    """Mean of a score over the inputs."""

    @abstractmethod
    def score(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the score of each input, `(B,)`."""

    def update(self, logits: Tensor, labels: Tensor) -> Tensor:
        return self.score(logits, labels).double().sum()

    def compute(self, statistics: Tensor, inputs: int) -> Tensor:
        return statistics / inputs

    def keep(self, logits: Tensor, labels: Tensor) -> Tensor:
        return self.score(logits, labels)

    def per_example(self, kept: Tensor, labels: Tensor) -> Floats:
        return kept.double().numpy()


class Proportion(MeanMetric):
    """Fraction of inputs whose score is true. Its noise is binomial."""

    @abstractmethod
    def guess(self, fractions: Floats) -> float:
        """Return the largest fraction that one answer to all inputs can have, if the classes have these."""

    def chance(self, counts: Sequence[int], population: Sequence[int] = ()) -> Chance:
        from search.class_statistics import class_shares

        value, inputs = float(self.guess(class_shares(counts, population))), sum(counts)
        return Chance(value=value, error=self.standard_error(value, inputs), step=1 / inputs)

    def standard_error(self, value: float, inputs: int) -> float:
        return sqrt(value * (1 - value) / inputs)

    def guessing(self, chance: Chance, inputs: int) -> float:
        """Return the bound from the binomial distribution. With very few inputs all may be guessed."""
        import numpy as np
        from scipy.special import bdtrc

        above = bdtrc(np.arange(inputs + 1.0), inputs, chance.value)  # P(more than k right answers)
        return float(np.argmax(above <= GUESSING_RATE)) / inputs


class Accuracy(Proportion):
    """Fraction of inputs whose most likely class is the true class."""

    def score(self, logits: Tensor, labels: Tensor) -> Tensor:
        return logits.argmax(1) == labels

    def guess(self, fractions: Floats) -> float:
        return float(fractions.max())


class CrossEntropy(MeanMetric):
    """Mean cross-entropy in nats, which distinguishes models with equal accuracy.

    Guessing is the lowest value that one answer to all inputs can have: the entropy of the classes'
    fractions.
    """

    def update(self, logits: Tensor, labels: Tensor) -> Tensor:
        from torch.nn.functional import cross_entropy

        return cross_entropy(logits, labels, reduction="sum").double()

    def score(self, logits: Tensor, labels: Tensor) -> Tensor:
        from torch.nn.functional import cross_entropy

        return cross_entropy(logits.double(), labels, reduction="none")

    def chance(self, counts: Sequence[int], population: Sequence[int] = ()) -> Chance:
        import numpy as np

        from search.class_statistics import class_shares

        fractions = class_shares(counts, population)
        surprise = -np.log(fractions)
        rms = float(np.sqrt((fractions * surprise**2).sum()))
        return Chance(value=float((fractions * surprise).sum()), error=0.0, step=rms / sum(counts))


class MeanOfClasses(ClassMetric):
    """Mean of (1 + w) TP / (inputs + w answers) over the classes with inputs, for w = `precision`.

    Its statistics are the right answers, the inputs and the answers of each class, `(3, classes)`.
    """

    precision: ClassVar[int]

    def update(self, logits: Tensor, labels: Tensor) -> Tensor:
        import torch
        from torch.nn.functional import one_hot

        true, answered = (
            one_hot(labels_of, logits.shape[1]).double() for labels_of in (labels, logits.argmax(1))
        )
        return torch.stack([(true * answered).sum(0), true.sum(0), answered.sum(0)])

    def compute(self, statistics: Tensor, inputs: int) -> Tensor:
        right, present, answers = statistics.unbind()
        scores = (1 + self.precision) * right / (present + self.precision * answers)
        return scores.where(present > 0, 0.0).sum() / (present > 0).sum()

    def keep(self, logits: Tensor, labels: Tensor) -> Tensor:
        return logits.argmax(1)

    def per_example(self, kept: Tensor, labels: Tensor) -> Floats:
        from search.class_statistics import classes_without_each, pseudo_values

        return pseudo_values(*classes_without_each(labels.numpy(), kept.numpy(), self.precision))

    def chance(self, counts: Sequence[int], population: Sequence[int] = ()) -> Chance:
        """Return the score of answers that do not depend on the input.

        With k classes they have a mean recall of 1 / k. Their mean F1 is 1 / k at most: it is concave in the
        fractions of the answers, and largest if these are the fractions of the classes. The step is a root
        mean square over the inputs.
        """
        import numpy as np

        inputs = np.array([count for count in counts if count], float)
        n, k = inputs.sum(), len(inputs)
        likely = inputs / n if self.precision else np.full(k, 1 / k)
        error = np.sqrt((likely * (1 - likely) / inputs).sum()) / k
        return Chance(value=1 / k, error=float(error), step=float(np.sqrt((1 / inputs).sum() / n) / k))


class BalancedAccuracy(MeanOfClasses):
    """Mean recall of the classes (K. Brodersen et al., The balanced accuracy and its posterior (2010))."""

    precision = 0


class MacroF1(MeanOfClasses):
    """Mean F1 of the classes."""

    precision = 1


class Auc(ClassMetric):
    """Mean area under the ROC curve of each class against all others, from midranks of probabilities.

    With two classes it is the area of the second, which equals that of the first. Guessing has an area of
    1/2, with the variance of the rank sum test (H. Mann and D. Whitney (1947)).

    Source: J. Hanley and B. McNeil, The meaning and use of the area under a ROC curve (1982).
    """

    whole = True

    def problem(self, counts: Sequence[int]) -> str:
        return "" if sum(count > 0 for count in counts) > 1 else ONE_CLASS.format(self.name)

    def update(self, logits: Tensor, labels: Tensor) -> Tensor:
        import torch

        scores = ranking_scores(logits)
        first = logits.shape[1] - len(scores)  # of two classes, the second
        classes = torch.arange(first, logits.shape[1], device=labels.device)
        positive = labels == classes[:, None]
        ordered = scores.sort(dim=1).values
        below, up_to = (torch.searchsorted(ordered, scores, right=right) for right in (False, True))
        ranks = (below + up_to + 1) / 2.0
        positives = positive.sum(1).double()
        negatives = len(labels) - positives
        areas = ((ranks * positive).sum(1) - positives * (positives + 1) / 2) / (positives * negatives)
        present = (positives > 0) & (negatives > 0)
        return areas.where(present, 0.0).sum() / present.sum()

    def compute(self, statistics: Tensor, inputs: int) -> Tensor:
        return statistics

    def per_example(self, kept: Tensor, labels: Tensor) -> Floats:
        from search.class_statistics import areas_without_each, pseudo_values

        scores = ranking_scores(kept).numpy()
        return pseudo_values(*areas_without_each(scores, labels.numpy(), kept.shape[1]))

    def chance(self, counts: Sequence[int], population: Sequence[int] = ()) -> Chance:
        """Return the score of guessing, as if the areas of several classes were perfectly correlated."""
        import numpy as np

        if problem := self.problem(counts):
            raise InputError(problem)
        inputs = np.array([count for count in counts if count], float)
        n, k = inputs.sum(), len(inputs)
        negatives = n - inputs
        most = (1 / inputs + (1 / negatives).sum() - 1 / negatives) / k
        error = np.sqrt((n + 1) / (12 * inputs * negatives)).mean()
        return Chance(value=0.5, error=float(error), step=float(np.sqrt((inputs / n * most**2).sum())))


class MacroAp(ClassMetric):
    """Mean over labels of the average precision, as scikit-learn's `average_precision_score`.

    It is the mean precision at the inputs that have the label. Labels that no input has are left out.
    """

    target = "labels"
    whole = True

    def update(self, logits: Tensor, labels: Tensor) -> Tensor:
        import torch

        from search.class_statistics import precisions_without_each

        sums, counts = precisions_without_each(logits.detach().double().cpu().numpy(), labels.cpu().numpy())
        return torch.tensor(sums[0] / counts[0], dtype=torch.float64)

    def compute(self, statistics: Tensor, inputs: int) -> Tensor:
        return statistics

    def per_example(self, kept: Tensor, labels: Tensor) -> Floats:
        from search.class_statistics import precisions_without_each, pseudo_values

        return pseudo_values(*precisions_without_each(kept.double().numpy(), labels.numpy()))

    def chance_of(self, targets: Tensor) -> Chance | None:
        """Return the score of random order, as if the precisions of labels were perfectly correlated."""
        import numpy as np

        from search.class_statistics import random_precision

        positives = np.array([count for count in targets.sum(0).long().tolist() if count])
        if not len(positives):
            return None
        means, errors = zip(*(random_precision(k, len(targets)) for k in positives), strict=True)
        step = np.sqrt((1 / positives).sum() / positives.sum()) / len(positives)
        return Chance(value=float(np.mean(means)), error=float(np.mean(errors)), step=float(step))


class R2(ClassMetric):
    """Coefficient of determination: the fraction of the numbers' variance on a split that is explained."""

    target = "numbers"
    whole = True

    def update(self, logits: Tensor, labels: Tensor) -> Tensor:
        labels = labels.double()
        return 1 - (logits.double() - labels).square().sum() / (labels - labels.mean()).square().sum()

    def compute(self, statistics: Tensor, inputs: int) -> Tensor:
        return statistics

    def per_example(self, kept: Tensor, labels: Tensor) -> Floats:
        import numpy as np

        true, n = labels.double().numpy()[:, 0], len(labels)
        errors, squares = (kept.double().numpy()[:, 0] - true) ** 2, (true - true.mean()) ** 2
        error, total = errors.sum(), squares.sum()
        rest = total - squares * n / (n - 1)  # of the variance, around the mean without the input
        without = 1 - np.divide(error - errors, rest, out=np.full(n, error / total), where=rest > 0)
        return np.asarray(n * (1 - error / total) - (n - 1) * without)

    def chance(self, counts: Sequence[int], population: Sequence[int] = ()) -> Chance:
        """Return 0, the score of the mean, with the deviation that one parameter fitted to noise has."""
        inputs = sum(counts)
        return Chance(value=0.0, error=sqrt(2) / inputs, step=1 / inputs)


class MeanAbsoluteError(MeanMetric):
    """Mean absolute error, in the unit of the numbers."""

    target = "numbers"

    def score(self, logits: Tensor, labels: Tensor) -> Tensor:
        return (logits.double() - labels).abs()[:, 0]

    def chance_of(self, targets: Tensor) -> Chance:
        """Return the lowest error of one answer to all inputs, the median, with a deviation as that of R2."""
        errors = (targets.double() - targets.double().median()).abs()
        value, inputs = errors.mean().item(), len(targets)
        return Chance(value=value, error=sqrt(2) * value / inputs, step=value / inputs)


ONE_CLASS = (
    "--metric {} needs inputs of two or more classes in every scored split; one split has a single class. "
    "Choose accuracy, or split the data differently."
)


def ranking_scores(logits: Tensor) -> Tensor:
    """Return the scores that the area under the curve ranks, float64 `(classes, N)`.

    With two classes it is `(1, N)`, the log-odds of the second: a probability near 1 has few digits left.
    """
    logits = logits.double()
    if logits.shape[1] == 2:
        return (logits[:, 1] - logits[:, 0])[None]
    return logits.softmax(1).T.contiguous()


_PERCENT: dict[str, Any] = {"maximize": True, "scale": 100.0, "unit": "%", "gap": "points"}
ACCURACY = Accuracy(name="accuracy", **_PERCENT)
BALANCED_ACCURACY = BalancedAccuracy(name="balanced_accuracy", **_PERCENT)
MACRO_F1 = MacroF1(name="macro_f1", **_PERCENT)
AUC = Auc(name="auc", **_PERCENT)
LOSS = CrossEntropy(name="loss", maximize=False, unit="nats", margin=0.01)
MACRO_AP = MacroAp(name="macro_ap", **_PERCENT)
R_SQUARED = R2(name="r2", maximize=True, margin=0.01)
MAE = MeanAbsoluteError(name="mae", maximize=False, margin=0.0)
LABELS, NUMBERS = (MACRO_AP,), (R_SQUARED, MAE)  # the default first
CLASSIFICATION = (ACCURACY, BALANCED_ACCURACY, MACRO_F1, AUC, LOSS)  # the default first

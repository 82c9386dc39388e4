"""Metrics of classifiers: each is an object that declares and computes itself, and knows what guessing gives.

A metric of your own is an instance of a subclass, in the file of a task that lists it among its `metrics`.
Configurations import this module, so it imports PyTorch and NumPy only where they are used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import sqrt
from typing import TYPE_CHECKING, Any, ClassVar

from attention import InputError
from search.metric import GUESSING_RATE, Chance, Metric

if TYPE_CHECKING:
    from torch import Tensor

    from search.class_statistics import Floats


class ClassMetric(Metric, ABC):
    """A metric that is computed from logits `(B, classes)` and labels, int64 `(B,)`.

    Attributes:
        whole: True if `update` takes a whole split at once, since statistics of batches do not add up.
    """

    whole: ClassVar[bool] = False

    @abstractmethod
    def update(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the statistics of a batch, float64. They are added over batches and workers."""

    @abstractmethod
    def compute(self, statistics: Tensor, inputs: int) -> Tensor:
        """Return the metric, a scalar, from the statistics of a split with so many inputs."""

    def keep(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return what `per_example` needs of a batch, `(B, ...)`; by default the logits."""
        return logits

    @abstractmethod
    def per_example(self, kept: Tensor, labels: Tensor) -> Floats:
        """Return what each input of a split contributes, `(N,)`, from what was kept of all, on the CPU.

        These are the pseudo-values of J. Tukey's jackknife: N times the metric, less N - 1 times that without
        the input. For a mean over inputs they are what is averaged. For others the variance of their mean is
        the metric's (B. Efron and C. Stein, The jackknife estimate of variance (1981)).
        """

    def problem(self, counts: Sequence[int]) -> str:
        """Return why the metric has no value on a split with so many inputs of each class, or nothing."""
        return ""


class MeanMetric(ClassMetric):
    """The mean of a score over the inputs."""

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
        values: Floats = kept.double().numpy()
        return values


class Proportion(MeanMetric):
    """The share of inputs whose score is true, which has binomial noise."""

    @abstractmethod
    def guess(self, shares: Floats) -> float:
        """Return the largest share that one answer to all inputs can have, from the shares of the classes."""

    def chance(self, counts: Sequence[int], population: Sequence[int] = ()) -> Chance:
        from search.class_statistics import class_shares

        value, inputs = float(self.guess(class_shares(counts, population))), sum(counts)
        return Chance(value=value, error=self.standard_error(value, inputs), step=1 / inputs)

    def standard_error(self, value: float, inputs: int) -> float:
        return sqrt(value * (1 - value) / inputs)

    def guessing(self, chance: Chance, inputs: int) -> float:
        """Return the bound by the binomial distribution; of very few inputs all may be guessed."""
        import numpy as np
        from scipy.special import bdtrc

        above = bdtrc(np.arange(inputs + 1.0), inputs, chance.value)  # P(more than k right answers)
        return float(np.argmax(above <= GUESSING_RATE)) / inputs


class Accuracy(Proportion):
    """The share of inputs whose most likely class is the true one."""

    def score(self, logits: Tensor, labels: Tensor) -> Tensor:
        return logits.argmax(1) == labels

    def guess(self, shares: Floats) -> float:
        return float(shares.max())


class CrossEntropy(MeanMetric):
    """The mean cross-entropy in nats, which tells models apart that accuracy does not.

    Guessing is the least that one answer to all inputs can have: the entropy of the classes' shares.
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

        shares = class_shares(counts, population)
        surprise = -np.log(shares)
        rms = float(np.sqrt((shares * surprise**2).sum()))
        return Chance(value=float((shares * surprise).sum()), error=0.0, step=rms / sum(counts))


class MeanOfClasses(ClassMetric):
    """The mean of (1 + w) TP / (inputs + w answers) over the classes that have inputs, for w = `precision`.

    Its statistics are the right answers, the inputs and the answers of each class, `(3, classes)`.
    """

    precision: ClassVar[int]

    def update(self, logits: Tensor, labels: Tensor) -> Tensor:
        import torch
        from torch.nn.functional import one_hot

        true, answered = (one_hot(of, logits.shape[1]).double() for of in (labels, logits.argmax(1)))
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
        """Return what answers come to that do not depend on the input.

        Of k classes they have a mean recall of 1 / k, and a mean F1 of 1 / k at most, since
        it is concave in the shares of the answers and largest where these are the classes'. The step is a
        root mean square over the inputs.
        """
        import numpy as np

        inputs = np.array([count for count in counts if count], float)
        n, k = inputs.sum(), len(inputs)
        likely = inputs / n if self.precision else np.full(k, 1 / k)
        error = np.sqrt((likely * (1 - likely) / inputs).sum()) / k
        return Chance(value=1 / k, error=float(error), step=float(np.sqrt((1 / inputs).sum() / n) / k))


class BalancedAccuracy(MeanOfClasses):
    """The mean recall (K. Brodersen et al., The balanced accuracy and its posterior (2010))."""

    precision = 0


class MacroF1(MeanOfClasses):
    """The mean over the classes of F1."""

    precision = 1


class Auc(ClassMetric):
    """The mean area under the ROC curve of each class against all others, from midranks of probabilities.

    Of two classes it is the area of the second one, which is also that of the first. Guessing has an area of
    1/2, with the variance of the rank sum test (H. Mann and D. Whitney (1947)).

    Source: J. Hanley and B. McNeil, The meaning and use of the area under a ROC curve (1982).
    """

    whole = True

    def problem(self, counts: Sequence[int]) -> str:
        return "" if sum(count > 0 for count in counts) > 1 else ONE_CLASS.format(self.name)

    def update(self, logits: Tensor, labels: Tensor) -> Tensor:
        import torch

        scores = probabilities(logits)
        first = logits.shape[1] - len(scores)  # the second class of two
        classes = torch.arange(first, logits.shape[1], device=labels.device)
        positive = labels == classes[:, None]
        ordered = scores.sort(dim=1).values
        below, up_to = (torch.searchsorted(ordered, scores, right=right) for right in (False, True))
        ranks = (below + up_to + 1) / 2.0
        n = positive.sum(1).double()
        rest = len(labels) - n
        areas = ((ranks * positive).sum(1) - n * (n + 1) / 2) / (n * rest)
        present = (n > 0) & (rest > 0)
        return areas.where(present, 0.0).sum() / present.sum()

    def compute(self, statistics: Tensor, inputs: int) -> Tensor:
        return statistics

    def per_example(self, kept: Tensor, labels: Tensor) -> Floats:
        from search.class_statistics import areas_without_each, pseudo_values

        scores = probabilities(kept).numpy()
        return pseudo_values(*areas_without_each(scores, labels.numpy(), kept.shape[1]))

    def chance(self, counts: Sequence[int], population: Sequence[int] = ()) -> Chance:
        """Return what guessing comes to. The step is the most that an input's rank can change.

        Areas of several classes are taken to go together.
        """
        import numpy as np

        if problem := self.problem(counts):
            raise InputError(problem)
        inputs = np.array([count for count in counts if count], float)
        n, k = inputs.sum(), len(inputs)
        rest = n - inputs
        most = (1 / inputs + (1 / rest).sum() - 1 / rest) / k
        error = np.sqrt((n + 1) / (12 * inputs * rest)).mean()
        return Chance(value=0.5, error=float(error), step=float(np.sqrt((inputs / n * most**2).sum())))


ONE_CLASS = (
    "--metric {} needs inputs of two classes or more in every split that is scored; one split has one class "
    "alone. Choose accuracy, or make other splits."
)


def probabilities(logits: Tensor) -> Tensor:
    """Return float64 `(classes, N)`, as the area under the curve ranks them.

    Of two classes the second one's alone, as log-odds: a probability near 1 has few digits left.
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
CLASSIFICATION = (ACCURACY, BALANCED_ACCURACY, MACRO_F1, AUC, LOSS)  # the default first

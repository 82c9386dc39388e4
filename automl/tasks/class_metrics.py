"""Metrics of classifiers beside accuracy: balanced accuracy, macro F1, AUC and the cross-entropy.

The first three are means over the classes that inputs of the split have; others have no recall to speak of.

balanced_accuracy: the mean recall (K. Brodersen et al., The balanced accuracy and its posterior (2010)).
macro_f1: the mean over the classes of F1 = 2 TP / (inputs + answers).
auc: the mean area under the ROC curve of each class against all others, from the midranks of its probability
(J. Hanley and B. McNeil, The meaning and use of the area under a ROC curve (1982)). Of two classes it is the
area of the second one, which is also that of the first.
loss: the mean cross-entropy over the inputs, in nats. It tells models apart that accuracy does not.
"""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.special import chdtrc
from torch import Tensor

from attention import InputError
from automl.data.balance import is_imbalanced
from search.metric import ACCURACY, AUC, LOSS, MACRO_F1, Chance, Metric

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

ACCIDENT = 1e-6  # a split of whole subjects, or one that others made, may have other shares on purpose


def of_counts(counts: Tensor) -> dict[str, Tensor]:
    """Balanced accuracy and macro F1 of right answers, inputs and answers by class, `(3, classes)`."""
    right, inputs, answers = counts
    there = inputs > 0
    recall, f1 = right / inputs, 2 * right / (inputs + answers)
    mean = {"balanced_accuracy": recall, "macro_f1": f1}
    return {name: each.where(there, 0.0).sum() / there.sum() for name, each in mean.items()}


def probabilities(logits: Tensor) -> Tensor:
    """By class, float64 `(classes, N)`, as the area under the curve ranks them.

    Of two classes the second one's alone, as log-odds: a probability near 1 has few digits left.
    """
    logits = logits.double()
    if logits.shape[1] == 2:
        return (logits[:, 1] - logits[:, 0])[None]
    return logits.softmax(1).T.contiguous()


def auc(logits: Tensor, true: Tensor) -> Tensor:
    """The mean area under the curves, of logits `(N, classes)` and labels `(N,)` of two classes or more."""
    scores = probabilities(logits)
    first = logits.shape[1] - len(scores)  # the second class of two
    classes = torch.arange(first, logits.shape[1], device=true.device)
    positive = true == classes[:, None]
    ordered = scores.sort(dim=1).values
    below, up_to = (torch.searchsorted(ordered, scores, right=right) for right in (False, True))
    ranks = (below + up_to + 1) / 2.0
    n = positive.sum(1).double()
    rest = len(true) - n
    areas = ((ranks * positive).sum(1) - n * (n + 1) / 2) / (n * rest)
    there = (n > 0) & (rest > 0)
    return areas.where(there, 0.0).sum() / there.sum()


def pseudo_values(metric: Metric, true: Labels, answered: Labels, logits: Tensor | None) -> Floats:
    """What each input contributes to a metric, `(N,)`: N times the metric, less N - 1 times that without it.

    These are the pseudo-values of J. Tukey's jackknife, which recomputes the metric without each input in
    turn. For a mean over inputs they are what is averaged; for others the variance of their mean is the
    metric's (B. Efron and C. Stein, The jackknife estimate of variance (1981)), so that what holds of means
    over inputs can be had of these metrics. A class whose only input is left out is left out with it.

    logits: `(N, classes)`, for `auc` and `loss` alone.
    """
    if metric.name == ACCURACY.name:
        return np.asarray(true == answered, float)
    if metric.name == LOSS.name:
        assert logits is not None
        return F.cross_entropy(logits.double(), torch.as_tensor(true), reduction="none").cpu().numpy()
    if metric.name == AUC.name:
        assert logits is not None
        sums, counts = _areas_without_each(probabilities(logits).cpu().numpy(), true, logits.shape[1])
    else:
        sums, counts = _means_without_each(metric, true, answered)
    (whole, classes), n = (sums[0], counts[0]), len(true)
    theta = whole / classes
    left = np.divide(sums[1:], counts[1:], out=np.full(n, theta), where=counts[1:] > 0)
    return np.asarray(n * theta - (n - 1) * left)


def _means_without_each(metric: Metric, true: Labels, answered: Labels) -> tuple[Floats, Floats]:
    """The sum over classes and their number: of all inputs, and then without each, `(1 + N,)`."""
    size = int(max(true.max(), answered.max())) + 1
    inputs, answers = (np.bincount(of, minlength=size).astype(float) for of in (true, answered))
    right = np.bincount(true[true == answered], minlength=size).astype(float)

    def each(right: Floats, inputs: Floats, answers: Floats) -> Floats:
        below = inputs + answers if metric.name == MACRO_F1.name else inputs
        above = 2 * right if metric.name == MACRO_F1.name else right
        return np.divide(above, below, out=np.zeros_like(above), where=inputs > 0)

    now = each(right, inputs, answers)
    hit = (true == answered).astype(float)
    # Of its true class there is one input less, and of the answered one an answer.
    mine = each(right[true] - hit, inputs[true] - 1, answers[true] - hit)
    other = each(right[answered], inputs[answered], answers[answered] - 1)
    change = mine - now[true] + np.where(hit > 0, 0.0, other - now[answered])
    classes = float((inputs > 0).sum())
    sums = np.concatenate([[now.sum()], now.sum() + change])
    return sums, np.concatenate([[classes], classes - (inputs[true] == 1)])


def _areas_without_each(scores: Floats, true: Labels, classes: int) -> tuple[Floats, Floats]:
    """The same of the areas under the curves. scores: `(classes, N)`, or `(1, N)` of the second of two.

    An area is the mean over its class's inputs of the part of the others that each is above, and the mean
    over the others of the part that each is below; without an input it is that without the input's part
    (E. DeLong, D. DeLong and D. Clarke-Pearson (1988)).
    """
    n = len(true)
    sums, counts = np.zeros(1 + n), np.zeros(1 + n)
    for column, score in enumerate(scores, start=classes - len(scores)):
        mine = true == column
        ours, theirs = int(mine.sum()), n - int(mine.sum())
        if not ours or not theirs:
            continue
        ranks, parts = _midranks(score), np.empty(n)
        parts[mine] = (ranks[mine] - _midranks(score[mine])) / theirs
        parts[~mine] = 1 - (ranks[~mine] - _midranks(score[~mine])) / ours
        area, size = parts[mine].mean(), np.where(mine, ours, theirs)
        there = size > 1
        left = np.divide(size * area - parts, size - 1, out=np.zeros(n), where=there)
        sums += np.concatenate([[area], left])
        counts += np.concatenate([[1.0], there])
    return sums, counts


def _midranks(values: Floats) -> Floats:
    """The rank of each value, from 1 on; equal ones have the mean of theirs."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (counts.cumsum() - (counts - 1) / 2)[which]


def guessed(metric: Metric, counts: Sequence[int], population: Sequence[int] | None = None) -> Chance:
    """What one who knows nothing of the inputs comes to on a split with so many inputs of each class.

    population: inputs of each class in training and validation. If it is balanced, its shares are those of
    the classes, and the split's majority is an accident (`class_shares`).

    Of accuracy it is the share of the largest class. Answers that do not depend on the input have a mean
    recall of 1 / k of k classes, whatever they are; a mean F1 of 1 / k at most, as it is concave in the
    shares of the answers and largest where these are the classes'; and an area of 1/2. An area's variance is
    that of the rank sum test (H. Mann and D. Whitney (1947)); those of several classes are taken to go
    together.

    A loss is the least that the same answer to all inputs can have: the entropy of the classes' shares.

    The step is a root mean square over the inputs; a rare class's is worth more. Of areas it is the most that
    an input's rank can change.

    Raises InputError for an area where there is one class alone.
    """
    n_c = np.array([count for count in counts if count], float)
    n, k = n_c.sum(), len(n_c)
    share = n_c / n
    expected = class_shares(counts, population or counts)
    if metric.name == ACCURACY.name:
        value = float(expected.max())
        return Chance(value=value, error=float(np.sqrt(value * (1 - value) / n)), step=float(1 / n))
    if metric.name == AUC.name:
        check_classes(metric, counts)
        rest = n - n_c
        worth = (1 / n_c + (1 / rest).sum() - 1 / rest) / k
        error = np.sqrt((n + 1) / (12 * n_c * rest)).mean()
        return Chance(value=0.5, error=float(error), step=float(np.sqrt((share * worth**2).sum())))
    if metric.name == LOSS.name:
        surprise = -np.log(expected)
        rms = float(np.sqrt((expected * surprise**2).sum()))
        return Chance(value=float((expected * surprise).sum()), error=0.0, step=rms / float(n))
    likely = share if metric.name == MACRO_F1.name else np.full(k, 1 / k)
    error = np.sqrt((likely * (1 - likely) / n_c).sum()) / k
    return Chance(value=1 / k, error=float(error), step=float(np.sqrt((1 / n_c).sum() / n) / k))


def class_shares(counts: Sequence[int], population: Sequence[int]) -> Floats:
    """Return the shares of the classes that have inputs, as one who guesses may expect them on a split.

    They are those of the population if its classes are balanced (`is_imbalanced`) and the split could be
    drawn from it by accident; otherwise those of the split.
    """
    of_split, of_all = np.array(counts, float), np.array(population, float)
    if (of_all[of_split > 0] > 0).all() and not is_imbalanced(population):
        share: Floats = of_all[of_all > 0] / of_all.sum()
        mean = share * of_split.sum()
        squares = ((of_split[of_all > 0] - mean) ** 2 / mean).sum()
        if chdtrc(max(len(share) - 1, 1), squares) > ACCIDENT:
            return share
    there: Floats = of_split[of_split > 0] / of_split.sum()
    return there


def check_classes(metric: Metric, counts: Sequence[int]) -> None:
    """Raises InputError where a metric needs several classes and a split has inputs of one alone."""
    if metric.name == AUC.name and sum(count > 0 for count in counts) < 2:
        raise InputError(
            "--metric auc needs inputs of two classes or more in every split that is scored; one split has "
            "one class alone. Choose accuracy, or make other splits."
        )

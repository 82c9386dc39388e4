"""The loss of classifiers: cross-entropy with label smoothing, class weights and mixed inputs."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from automl.config.runtime import Runtime
from search.config.sections import ClassWeights


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

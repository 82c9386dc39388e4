"""The loss of classifiers: cross-entropy with label smoothing and class weights, of mixed inputs, too."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from automl.config.runtime import Runtime
from search.config import ClassWeights


def balance_classes(kind: ClassWeights, counts: Sequence[int], device: torch.device) -> Tensor | None:
    """The weight of each class in the loss, `(classes,)`, from the training inputs of each; None for none.

    `balanced`: n / (k n_c) of the k classes that there are, so that the mean over inputs is 1 (G. King and L.
    Zeng, Logistic regression in rare events data (2001)).
    """
    if kind == "none":
        return None
    n_c = torch.tensor(counts, dtype=torch.float32)
    there = n_c > 0
    return (n_c.sum() / (there.sum() * n_c)).where(there, 0.0).to(device)


def accuracy(logits: Tensor, labels: Tensor, mixed: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """The part of inputs whose largest of the logits `(B, classes)` is that of the label, `(B,)`.

    mixed: as in `cross_entropy`. The label of a mixed input is the one with the larger share.
    """
    if mixed is not None:
        other, share = mixed
        labels = labels.where(share >= 0.5, other)
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
    """The mean loss of logits `(B, classes)` and labels `(B,)`.

    mixed: of inputs that are mixed of two, the other one's labels and the first one's share, each `(B,)`.
    With weights it is the weighted mean, as `torch.nn.CrossEntropyLoss` has it: the sum of each label's share
    times its weight times its loss, over the sum of shares times weights. That one is of the batch of all
    workers, so that the mean of their gradients is the gradient of the whole batch.
    """
    if weights is None and mixed is None:
        return F.cross_entropy(logits, labels, label_smoothing=smoothing)
    parts = [(labels, torch.ones_like(logits[:, 0]))]
    if mixed is not None:
        other, share = mixed
        parts = [(labels, share), (other, 1 - share)]
    losses = sum(
        (
            share * F.cross_entropy(logits, label, weights, reduction="none", label_smoothing=smoothing)
            for label, share in parts
        ),
        start=torch.zeros_like(logits[:, 0]),
    )
    if weights is None:
        return losses.mean()
    whole = sum(((share * weights[label]).sum() for label, share in parts), start=weights.new_zeros(()))
    return losses.sum() / (runtime.total(whole) / runtime.workers)

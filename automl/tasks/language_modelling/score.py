"""Metrics of predicted tokens, over batches and workers."""

from math import log

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from automl.config.runtime import Runtime
from automl.storage.trial_files import Answers
from automl.task.evaluator import Evaluator
from automl.tasks.language_modelling.config import NEEDLES
from backbones.example import logits
from search.class_statistics import pseudo_values

UNMARKED = -100  # target of a position that does not count


def cross_entropy(predicted: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss [nats] of logits `(B, N, V)` at the marked positions of targets `(B, N)`."""
    return F.cross_entropy(predicted.flatten(0, 1), targets.flatten(), ignore_index=UNMARKED)


def divergence(predicted: Tensor, taught: Tensor, targets: Tensor) -> Tensor:
    """Return the mean of KL(taught || predicted) [nats] of logits `(B, N, V)` at the marked positions."""
    marked = targets != UNMARKED
    own, other = (t[marked].float().log_softmax(-1) for t in (predicted, taught))
    return F.kl_div(own, other, reduction="batchmean", log_target=True)


class LanguageEvaluator(Evaluator):
    """Evaluator of the marked positions.

    The metrics are `loss` [nats a token], `accuracy`, and for a text `bits_per_byte`. Each is a mean over
    all marked positions of the split.

    Args:
        metric: The metric whose values `answers` has.
        bytes_per_token: Bytes of text for each predicted token. 0 if the tokens are no text.
    """

    def __init__(self, metric: str, bytes_per_token: float) -> None:
        self.metric, self.bytes_per_token = metric, bytes_per_token
        self.sums: list[Tensor] = []  # for each window: positions, loss, right predictions

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Add logits `(B, N, V)` and targets `(B, N)`, which are `UNMARKED` where they do not count."""
        predicted = logits(outputs)
        losses = F.cross_entropy(predicted.mT.float(), targets, ignore_index=UNMARKED, reduction="none")
        is_right = (predicted.argmax(-1) == targets) & (targets != UNMARKED)
        columns = (targets != UNMARKED, losses, is_right)
        self.sums.append(torch.stack([column.double().sum(1) for column in columns], 1))

    def compute(self, runtime: Runtime) -> dict[str, Tensor]:
        count, loss, right = runtime.total(torch.cat(self.sums).sum(0))
        metrics = {"loss": loss / count, "accuracy": right / count}
        if self.bytes_per_token:
            metrics["bits_per_byte"] = metrics["loss"] / (log(2) * self.bytes_per_token)
        return metrics

    def answers(self, runtime: Runtime) -> Answers | None:
        """Return the pseudo-value of each window, or None if needles in other windows count."""
        if self.metric in NEEDLES:
            return None
        gathered = runtime.gather((torch.cat(list(self.index)).cpu(), torch.cat(self.sums).cpu()))
        index, sums = (torch.cat(list(tensors)) for tensors in zip(*gathered, strict=True))
        total = sums.sum(0, keepdim=True)
        count, loss, right = torch.cat([total, total - sums[index.argsort()]]).numpy().T
        scale = {"bits_per_byte": 1 / (log(2) * (self.bytes_per_token or 1))}.get(self.metric, 1.0)
        values = scale * (right if self.metric == "accuracy" else loss)
        return Answers(values=pseudo_values(np.asarray(values), np.asarray(count)))

"""Metrics of predicted tokens, over batches and workers, and the recall of planted facts.

A decoder may win on the loss and forget what stands further back. A fact is planted at a random position in
the first half of a sequence, and its beginning is repeated at the end: the model must continue it. In
sequences of recall the facts are their pairs, among more fillers. In a text a fact is a row of tokens drawn
from the text one by one, so that only the sequence itself predicts its end. Source: the needle tests of
long contexts, such as C.-P. Hsieh et al., RULER (2024), arXiv 2404.06654, with keys that a small model can
read.
"""

from math import log

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from automl.base.errors import InputError
from automl.config.runtime import Runtime
from automl.storage.trial_files import Answers
from automl.task.evaluator import Evaluator
from automl.tasks.language_modelling import NEEDLES, LanguageData, LanguageModel
from automl.tasks.language_modelling.data import Windows
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


FACT, CUE = 8, 4  # tokens of a fact, and of its beginning that is repeated
SEQUENCES = 64
SEED = 240406654


def usable_windows(data: LanguageData, model: LanguageModel, windows: Windows) -> dict[str, Windows]:
    """Return the longer windows that the model's positions and the text allow, by the name of the metric."""
    limit = model.shape.context
    if data.source == "text" and data.context < 2 * FACT:
        return {}
    allowed = {
        name: windows.longer(factor)
        for name, factor in NEEDLES.items()
        if limit is None or factor * data.context <= limit
    }
    return {name: longer for name, longer in allowed.items() if longer is not None}


def check_needle(metric: str, allowed: dict[str, Windows]) -> None:
    """Raise `InputError` if the metric is a needle that is not among those allowed."""
    if metric in NEEDLES and metric not in allowed:
        raise InputError(
            f"--metric {metric} needs sequences of {NEEDLES[metric]} times data.context, and the positions "
            f"of the model or the shortest split have fewer tokens, or data.context is below {2 * FACT}; "
            f"choose from {', '.join((*allowed, 'loss'))}, or change data.context"
        )


def plant(tokens: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Plant a fact in each text. The numbers `rows` `(B,)` alone decide where and what is planted.

    Return the tokens, int64 `(B, N + 1)`, with a fact and its repetition at the end, and marks as of
    `TextWindows.batch`, `(B, N)`.
    """
    tokens, N = tokens.copy(), tokens.shape[1] - 1
    for text, row in zip(tokens, rows.tolist(), strict=True):
        draw = np.random.default_rng([SEED, row])
        fact, start = draw.choice(text, FACT), draw.integers(0, N // 2 - FACT + 1)
        text[start : start + FACT] = text[-FACT:] = fact
    marks = np.zeros((len(tokens), N), np.bool_)
    marks[:, CUE - FACT :] = True
    return tokens, marks


def needle_sequences(source: str, windows: Windows, split: str, rows: np.ndarray) -> tuple[Tensor, Tensor]:
    """Return tokens and targets, int64 `(B, N)`, of sequences with facts by their numbers.

    Args:
        source: The source of the data: `recall` or `text`.
        windows: Windows of the length to measure.
        split: One of SPLITS.
        rows: Numbers from 0, `(B,)`.
    """
    tokens, marks = windows.batch(split, rows)
    if source == "text":
        tokens, marks = plant(tokens, rows)
    whole = torch.from_numpy(tokens)
    return whole[:, :-1].contiguous(), whole[:, 1:].masked_fill(~torch.from_numpy(marks), UNMARKED)

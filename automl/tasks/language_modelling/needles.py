"""Recall of planted facts, at the length of the training and at up to eight times that length.

A decoder may win on the loss and forget what stands further back. A fact is planted at a random position in
the first half of a sequence, and its beginning is repeated at the end: the model must continue it. In
sequences of recall the facts are their pairs, among more fillers. In a text a fact is a row of tokens drawn
from the text one by one, so that only the sequence itself predicts its end. Source: the needle tests of
long contexts, such as C.-P. Hsieh et al., RULER (2024), arXiv 2404.06654, with keys that a small model can
read.
"""

import numpy as np
import torch
from torch import Tensor

from automl.base.errors import InputError
from automl.tasks.language_modelling.config import NEEDLES, LanguageData, LanguageModel
from automl.tasks.language_modelling.data import Windows
from automl.tasks.language_modelling.score import UNMARKED

FACT, CUE = 8, 4  # tokens of a fact, and of its beginning that is repeated
SEQUENCES = 64
SEED = 240406654


def usable(data: LanguageData, model: LanguageModel, windows: Windows) -> dict[str, Windows]:
    """Return the longer windows of each metric that the model's positions and the text allow.

    Args:
        data: The data.
        model: The decoder.
        windows: The windows of the training.

    Returns:
        Windows by the name of the metric.
    """
    limit = model.shape.context
    if data.source == "text" and data.context < 2 * FACT:
        return {}
    allowed = {
        name: windows.longer(factor)
        for name, factor in NEEDLES.items()
        if limit is None or factor * data.context <= limit
    }
    return {name: longer for name, longer in allowed.items() if longer is not None}


def check(metric: str, allowed: dict[str, Windows]) -> None:
    """Raise `InputError` if the metric is a needle that is not among those allowed."""
    if metric in NEEDLES and metric not in allowed:
        raise InputError(
            f"--metric {metric} needs sequences of {NEEDLES[metric]} times data.context, and the positions "
            f"of the model or the shortest split have fewer tokens, or data.context is below {2 * FACT}; "
            f"choose from {', '.join((*allowed, 'loss'))}, or change data.context"
        )


def plant(tokens: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Plant a fact in each text.

    Args:
        tokens: Windows of text, int64 `(B, N + 1)`.
        rows: Their numbers `(B,)`, which alone decide where and what is planted.

    Returns:
        The tokens with a fact and its repetition at the end, and marks as of `TextWindows.batch`, `(B, N)`.
    """
    tokens, N = tokens.copy(), tokens.shape[1] - 1
    for text, row in zip(tokens, rows.tolist(), strict=True):
        draw = np.random.default_rng([SEED, row])
        fact, start = draw.choice(text, FACT), draw.integers(0, N // 2 - FACT + 1)
        text[start : start + FACT] = text[-FACT:] = fact
    marks = np.zeros((len(tokens), N), np.bool_)
    marks[:, CUE - FACT :] = True
    return tokens, marks


def sequences(source: str, windows: Windows, split: str, rows: np.ndarray) -> tuple[Tensor, Tensor]:
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

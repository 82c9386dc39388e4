"""Windows of a fixed number of tokens for a language model, from a generator or from packed text."""

from typing import Protocol

import numpy as np

from automl.data.manifest import Manifest
from automl.data.tally import Tally
from automl.tasks.language_modelling import LanguageData
from automl.tasks.language_modelling.data.recall import Recall
from automl.tasks.language_modelling.data.text_windows import open_text
from automl.tasks.language_modelling.data.token_cache import name_tokens


class Windows(Protocol):
    """Windows of tokens with the positions that count, for each of SPLITS.

    Attributes:
        vocabulary: number of different tokens.
        tally: documents that were left out or duplicated.
    """

    vocabulary: int

    @property
    def tally(self) -> Tally: ...

    def size(self, split: str) -> int:
        """Return the number of windows of a split."""

    def batch(self, split: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return windows by their numbers.

        Args:
            split: one of SPLITS.
            rows: numbers from 0, `(B,)`.

        Returns:
            Tokens int64 `(B, context + 1)`, and marks bool `(B, context)`: `marks[:, i]` is True if the
            prediction of `tokens[:, i + 1]` counts for loss and accuracy.
        """

    def bytes_per_token(self, split: str) -> float:
        """Return the mean number of bytes of text of a token. It is 0 if tokens are no text."""

    def manifest(self) -> Manifest: ...
    def describe_splits(self) -> dict[str, str]: ...


def open_windows(data: LanguageData) -> Windows:
    """Open the windows of all splits.

    Args:
        data: the configuration. With `recall` sequences are drawn, with `text` the text at `path` is packed.

    Returns:
        The windows.

    Raises:
        InputError: The path is missing or holds no text, or a split is shorter than a window.
    """
    if data.source == "recall":
        return Recall(data)
    return open_text(
        data.path,
        vocabulary=data.vocabulary,
        tokenizer=data.tokenizer,
        context=data.context,
        subset=data.subset,
    )


def shared_name(data: LanguageData) -> str | None:
    """Return the name of the data in a search's storage; None for recall, which every node draws."""
    if data.source == "recall" or data.path is None:
        return None
    return name_tokens(data.path, data.vocabulary, data.tokenizer)

"""Windows of a fixed number of tokens for a language model, from a generator or from packed text."""

from copy import copy
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np

from automl.base.errors import InputError
from automl.data.overview import Overview
from automl.data.splits import SPLITS
from automl.data.tally import Tally
from automl.tasks.language_modelling import LanguageData
from automl.tasks.language_modelling.data.recall import Recall
from automl.tasks.language_modelling.data.tokens import Documents, TokenFile, name_tokens, open_tokens


def open_windows(data: LanguageData) -> "Windows":
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


class TextWindows(Documents[TokenFile]):
    """Windows of the documents of each split, which follow each other.

    Training windows overlap in one token, so that each token but the first is predicted once an epoch. Those
    of validation and test begin every half context. Each predicts with at least half a context before it,
    except in the first window, and each token counts once: perplexity by sliding windows.

    Raises InputError if a split is shorter than a window.

    Attributes:
        tokenizer: converts texts to tokens and back.
        vocabulary: number of different tokens.
    """

    def __init__(self, file: TokenFile, context: int, subset: float) -> None:
        super().__init__(file, subset)
        self.tokenizer, self.vocabulary = file.tokenizer, file.tokenizer.vocabulary
        self._context = context
        self._tokens = {split: file.read_stream(self.rows(split)) for split in SPLITS}
        least = min(SPLITS, key=lambda split: len(self._tokens[split]))
        if (count := len(self._tokens[least])) <= context:
            raise InputError(
                f"data.context must be at most {count - 1}, since the {least} split has {count:,} tokens and "
                f"a window has one more than its context; got {context}. Choose a smaller one or add text"
            )

    @property
    def _stride(self) -> int:
        """Tokens between the windows of validation and test."""
        return max(1, self._context // 2)

    def longer(self, factor: int) -> "TextWindows | None":
        """Return windows of so many contexts, or None if a split is shorter than one of them."""
        windows = copy(self)
        windows._context *= factor
        return windows if min(map(len, self._tokens.values())) > windows._context else None

    def size(self, split: str) -> int:
        """Return the number of windows of a split."""
        rest = len(self._tokens[split]) - 1 - self._context  # predictions beyond the first window
        return 1 + (rest // self._context if split == "train" else -(-rest // self._stride))

    def batch(self, split: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return windows by their numbers.

        Args:
            split: one of SPLITS.
            rows: numbers from 0, `(B,)`.

        Returns:
            Tokens int64 `(B, context + 1)`, and marks bool `(B, context)`: `marks[:, i]` is True if the
            prediction of `tokens[:, i + 1]` counts for loss and accuracy.
        """
        tokens, context = self._tokens[split], self._context
        step = context if split == "train" else self._stride
        starts = np.minimum(rows * step, len(tokens) - 1 - context)[:, None]
        scored = np.where(rows > 0, (rows - 1) * step + context, 0)[:, None]  # in the windows before
        targets = starts + np.arange(1, context + 1)
        return tokens[starts + np.arange(context + 1)].astype(np.int64), targets > scored

    def bytes_per_token(self, split: str) -> float:
        """Return the mean number of bytes of text of a token.

        Ends of documents count as tokens without bytes.
        """
        return float(self.file.bytes[self.rows(split)].sum() / len(self._tokens[split]))

    @cached_property
    def tally(self) -> Tally:
        """Documents that were left out, are copies, or are in training and another split."""
        trained = {bytes(self.file.keys[row]) for row in self.rows("train")}
        tally = super().tally
        leaked = [
            self.file.names[row]
            for split in SPLITS[1:]
            for row in self.rows(split).tolist()
            if bytes(self.file.keys[row]) in trained
        ]
        tally.keep("documents of validation or test that are also in training (remove them)", leaked)
        return tally


Windows = TextWindows | Recall


def open_text(
    path: str | Path | None,
    *,
    vocabulary: int = 0,
    tokenizer: str = "",
    context: int = 1,
    subset: float = 1.0,
) -> TextWindows:
    """Open the text at `path`. Raises InputError without a path, and like `open_tokens` and `TextWindows`."""
    if path is None:
        raise InputError(
            "text needs the path of a text file, a folder of text files or a .jsonl file. Pass --data PATH"
        )
    return _open_file(open_tokens(path, vocabulary, tokenizer).path, context, subset)


@lru_cache(maxsize=4)
def _open_file(file: Path, context: int, subset: float) -> TextWindows:
    return TextWindows(TokenFile(file), context, subset)


def summarise_text(path: str | Path) -> Overview:
    """Return the overview of a file or folder. Raises InputError like `open_text`."""
    windows = open_text(path)
    rows = {split: windows.rows(split) for split in SPLITS}
    counts = {
        "documents": {split: len(rows[split]) for split in SPLITS},
        "bytes": {split: int(windows.file.bytes[rows[split]].sum()) for split in SPLITS},
        "tokens": {split: len(windows.file.read_stream(rows[split])) for split in SPLITS},
    }
    context = f"at most {min(counts['tokens'].values()) - 1:,} tokens, if each byte is one"
    return Overview(
        counts, how=windows.describe_splits(), tally=windows.tally, notes={"context": context}, **counts
    )

"""Windows of a fixed number of tokens for a language model, from packed text or of associative recall.

A generator draws sequences of multi-query associative recall when they are read.

Source: S. Arora et al., Zoology: Measuring and Improving Recall in Efficient Language Models (2023), arXiv
2312.04927. A sequence has `pairs` items `key, filler ..., value` of different keys, with up to `gap` fillers,
and then a query `key, value` of each key in random order. Further fillers stand anywhere before, between and
after them. Departures: items have gaps, and all arrangements of fillers are equally likely.

A sequence is a function of the split and its number alone. Random numbers are those of SplitMix64 (G. Steele
et al., Fast Splittable Pseudorandom Number Generators, 2014), which has no state, so that any rows are drawn
at once.
"""

import hashlib
from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from automl.base.errors import InputError
from automl.data.manifest import Manifest
from automl.data.overview import Overview
from automl.data.splits import SPLITS
from automl.data.tally import Tally
from automl.tasks.language_modelling import LanguageData
from automl.tasks.language_modelling.data.tokens import Documents, TokenFile, name_tokens, open_tokens

SEED = 231204927  # of the data; a trial's seed does not change them
FORMAT = 1  # Raise it when the same numbers would give other sequences.
FILLER = 0
LEAST = 512  # sequences of validation and of test

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Recall:
    """The sequences of all splits.

    Key symbols are 1 to `keys`, values the rest of the vocabulary.

    Attributes:
        vocabulary: number of symbols, including the filler.
        keys: number of symbols that are keys.
    """

    def __init__(self, data: LanguageData) -> None:
        self.vocabulary, self.keys = data.vocabulary, (data.vocabulary - 1) // 2
        self._data = data
        self.tally = Tally()
        held_out = max(LEAST, data.examples // 10)
        sizes = dict(zip(SPLITS, (data.examples, held_out, held_out), strict=True))
        self._sizes = {
            split: count if split == "test" else max(1, round(count * data.subset))
            for split, count in sizes.items()
        }

    def size(self, split: str) -> int:
        """Return the number of sequences of a split."""
        return self._sizes[split]

    def longer(self, factor: int) -> "Recall":
        """Return sequences of so many contexts with as many pairs, and more fillers."""
        return Recall(replace(self._data, context=factor * self._data.context))

    def bytes_per_token(self, split: str) -> float:
        """Return 0, since symbols have no bytes."""
        return 0.0

    def batch(self, split: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return sequences by their numbers.

        Args:
            split: one of SPLITS.
            rows: numbers from 0, `(B,)`.

        Returns:
            Symbols int64 `(B, context + 1)`, and marks bool `(B, context)`: True where the next symbol is the
            value of a query.
        """
        pairs, length = self._data.pairs, self._data.context + 1
        units = 2 * pairs  # items and queries
        slots = length - units  # of units and of the most fillers between them
        bits = _draw_bits(SPLITS.index(split), rows, self.keys + 3 * pairs + slots)
        key_bits, value_bits, gap_bits, order_bits, slot_bits = np.split(
            bits, np.cumsum([self.keys, pairs, pairs, pairs]), axis=1
        )
        keys = 1 + key_bits.argsort(axis=1)[:, :pairs]
        values = (1 + self.keys + value_bits % np.uint64(self.vocabulary - 1 - self.keys)).astype(np.int64)
        gaps = (gap_bits % np.uint64(self._data.gap + 1)).astype(np.int64)
        order = order_bits.argsort(axis=1)
        lengths = np.concatenate([gaps + 2, np.full_like(gaps, 2)], axis=1)  # (B, units)
        fillers = length - lengths.sum(axis=1, keepdims=True)
        slot_bits[np.arange(slots) >= units + fillers] = np.iinfo(np.uint64).max  # sorted to the end
        slot = np.sort(slot_bits.argsort(axis=1, kind="stable")[:, :units], axis=1)
        starts = slot - np.arange(units) + lengths.cumsum(axis=1) - lengths
        items, queries = starts[:, :pairs], starts[:, pairs:]
        tokens = np.full((len(rows), length), FILLER, np.int64)
        marks = np.zeros((len(rows), length - 1), np.bool_)
        np.put_along_axis(tokens, items, keys, axis=1)
        np.put_along_axis(tokens, items + gaps + 1, values, axis=1)
        np.put_along_axis(tokens, queries, np.take_along_axis(keys, order, axis=1), axis=1)
        np.put_along_axis(tokens, queries + 1, np.take_along_axis(values, order, axis=1), axis=1)
        np.put_along_axis(marks, queries, True, axis=1)
        return tokens, marks

    def describe_splits(self) -> dict[str, str]:
        """Return a phrase for each split that says how it was made."""
        return dict.fromkeys(SPLITS, "drawn from a seed of its own")

    def manifest(self) -> Manifest:
        """Return a list of the splits, each hashed with the parameters of its sequences."""
        data = self._data
        shape = (FORMAT, SEED, data.context, data.vocabulary, data.pairs, data.gap)
        rows: Mapping[str, list[tuple[str, str, bytes]]] = {
            split: [
                (
                    f"{size} sequences of {data.context}",
                    "",
                    hashlib.sha256(f"{shape} {size}".encode()).digest(),
                )
            ]
            for split, size in self._sizes.items()
        }
        return Manifest.from_splits(rows)


def _draw_bits(stream: int, rows: np.ndarray, count: int) -> np.ndarray:
    """Return `count` random numbers for each row of a stream, uint64 `(B, count)`."""
    states = _mix(np.array([SEED + stream], np.uint64))
    states = _mix(states + _GOLDEN * rows.astype(np.uint64))
    return _mix(states[:, None] + _GOLDEN * np.arange(1, count + 1, dtype=np.uint64))


def _mix(x: np.ndarray) -> np.ndarray:
    """Return the output function of SplitMix64 at each number."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = x ^ (x >> np.uint64(31))
    return mixed


def open_windows(data: LanguageData) -> "Windows":
    """Open the windows of all splits: drawn sequences of `recall`, or the text at `path`, packed.

    Raises InputError if the path is missing or holds no text, or a split is shorter than a window.
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
    counts: dict[str, Any] = {
        "documents": {split: len(rows[split]) for split in SPLITS},
        "bytes": {split: int(windows.file.bytes[rows[split]].sum()) for split in SPLITS},
        "tokens": {split: len(windows.file.read_stream(rows[split])) for split in SPLITS},
    }
    context = f"at most {min(counts['tokens'].values()) - 1:,} tokens, if each byte is one"
    return Overview(
        counts, how=windows.describe_splits(), tally=windows.tally, notes={"context": context}, **counts
    )

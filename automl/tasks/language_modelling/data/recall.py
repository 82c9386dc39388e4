"""Sequences of multi-query associative recall, drawn when they are read.

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
from dataclasses import replace

import numpy as np

from automl.data.manifest import Manifest
from automl.data.splits import SPLITS
from automl.data.tally import Tally
from automl.tasks.language_modelling import LanguageData

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

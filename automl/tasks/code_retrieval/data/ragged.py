"""Rows of numbers of different lengths, and padded batches of them."""

from collections.abc import Sequence

import numpy as np

PADDING = 0


class Ragged:
    """Rows of different lengths.

    Attributes:
        values: all rows in sequence, int32.
        starts: the first value of each row and the end, int64 `(N + 1,)`.
        lengths: number of values of each row, int64 `(N,)`.
    """

    def __init__(self, values: np.ndarray, starts: np.ndarray) -> None:
        self.values, self.starts = values, starts
        self.lengths = np.diff(starts)

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[int]]) -> "Ragged":
        starts = np.cumsum([0, *map(len, rows)])
        return cls(np.array([number for row in rows for number in row], np.int32), starts)

    def pad(self, rows: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Return tokens int64 `(B, T)` and mask bool `(B, T)` of `rows` `(B,)`, cut at `length`."""
        lengths = np.minimum(self.lengths[rows], length)
        positions = np.arange(max(1, lengths.max(initial=0)))
        mask = positions < lengths[:, None]
        tokens = np.full(mask.shape, PADDING, np.int64)
        tokens[mask] = self.values[(self.starts[rows][:, None] + positions)[mask]]
        return tokens, mask


def pad_rows(rows: Sequence[Sequence[int]], length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens int64 `(B, T)` and mask bool `(B, T)` of rows of numbers, cut at `length`."""
    return Ragged.from_rows(rows).pad(np.arange(len(rows)), length)

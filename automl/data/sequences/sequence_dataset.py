"""A split of sequences as the training loop reads it: labels in memory, values gathered from a memory map."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from attention.errors import unknown
from automl.data.records import Records
from automl.data.sequences.normalise import compute_statistics, normalise_in_place, padding_mask
from automl.data.sequences.sequence_cache import SequenceCache
from automl.data.sequences.sequence_sources import open_source
from automl.data.sequences.sequence_splits import hold_out_subjects
from automl.data.splits import SPLITS


class Sequences:
    """N sequences of C channels, in an order of their own.

    `labels` int64 (N,), `lengths` int64 (N,) real steps of each, `subjects` (N,) of whom each is, None where
    that is not known of all; `classes` and `channels` their names; `mean`, `std` float32 (C,) of the training
    data. It can be pickled: only the row numbers and the statistics travel.

    `steps` is T, the length of every batch: that of the dataset's longest sequence in any split. So training,
    validation, test and the deployed model have one shape, which CUDA graphs, compiled steps and learned
    positions need. Nothing else about the test split is known to training.
    """

    def __init__(self, cache: SequenceCache, rows: np.ndarray, mean: Tensor, std: Tensor) -> None:
        self.file, self._rows = cache, rows
        self.labels: Tensor = torch.from_numpy(cache.labels[rows].astype(np.int64))
        self.lengths: Tensor = torch.from_numpy(cache.lengths[rows])
        self.classes, self.channels, self.steps = cache.classes, cache.channels, cache.steps
        self.mean, self.std = mean, std

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return (
            f"Sequences({len(self)} sequences, {len(self.channels)} channels, {self.steps} steps, "
            f"{len(self.classes)} classes)"
        )

    @property
    def subjects(self) -> list[str] | None:
        found = [self.file.groups[row] for row in self._rows]
        known = [subject for subject in found if subject is not None]
        return known if len(known) == len(found) else None

    def names(self) -> list[str]:
        """The N sequences' names: those of the data, or `train/0`, their place in the file from 0."""
        names = self.file.names
        return [names[row] for row in self._rows]

    def values(self, index: int) -> np.ndarray:
        """One sequence as it is kept, float32 (C, T) with its own T, a read-only view of the memory map.

        Not normalised; a channel without any value is NaN.
        """
        return self.file.values(int(self._rows[index]))

    def raw(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """`gather` before normalisation: what a deployed model takes. A channel without any value is NaN."""
        rows = self._rows[indices.cpu().numpy()]
        x = torch.from_numpy(self.file.read_padded(rows))  # (B, C, T)
        return x, padding_mask(torch.from_numpy(self.file.lengths[rows]), self.steps)

    def gather(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """The sequences at `indices` (B,) on the CPU, copied: x float32 (B, C, T) and mask bool (B, T).

        x is normalised, and 0 behind each sequence's end, where the mask is False. Raises IndexError for an
        index that is not in -N..N-1.
        """
        x, mask = self.raw(indices)
        normalise_in_place(x.numpy(), mask.numpy(), self.mean.numpy(), self.std.numpy())
        return x, mask


class SequenceRecords(Records[SequenceCache]):
    """All sequences of a source: of each class a split has its share, or it has whole subjects."""

    noun = "sequences"
    group_noun = "subject"
    classed = True

    def labels(self, rows: np.ndarray) -> np.ndarray:
        labels: np.ndarray = self.file.labels[rows]
        return labels

    def class_name(self, row: int) -> str:
        return self.file.classes[int(self.file.labels[row])]

    def hold_out(self, rows: np.ndarray, split: str, share: float) -> tuple[np.ndarray, np.ndarray]:
        subjects = [self.file.groups[row] for row in rows]
        if None in subjects:
            return super().hold_out(rows, split, share)
        return hold_out_subjects(self.labels(rows), self.file.classes, subjects, share, split)


def open_sequences(
    source: str, split: str, *, path: str | Path | None = None, subset: float = 1.0
) -> Sequences:
    """Opens one split of a source, reading the dataset into its cache if need be.

    subset: about the share of each class of "train" and "validation" that is used; "test" is always whole.
    What is then in "train" decides how all splits are normalised.

    Raises InputError for an unknown source or split, and for everything that
    `automl.data.sequences.sequence_sources.opened` refuses.
    """
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    records = open_sequence_records(source, path=path, subset=subset)
    file, train = records.file, records.rows("train")
    mean, std = compute_statistics(file.lengths[train], file.means[train], file.variances[train])
    return Sequences(file, records.rows(split), mean, std)


def open_sequence_records(
    source: str, *, path: str | Path | None = None, subset: float = 1.0
) -> SequenceRecords:
    """Open a whole source. Raises InputError like `open_sequences`."""
    return SequenceRecords(open_source(source, path), subset)

"""A split of sequences as the training loop reads it: labels in memory, values gathered from a memory map."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from attention.errors import InputError, unknown
from automl.data.manifest import Manifest
from automl.data.sequences.cache import Cache
from automl.data.sequences.normalise import normalise_in_place, padding_mask, statistics
from automl.data.sequences.sources import opened
from automl.data.sequences.splits import SHARE, hold_out
from automl.data.splits import SPLITS, thinned


class Sequences:
    """N sequences of C channels, in an order of their own.

    `labels` int64 (N,), `lengths` int64 (N,) real steps of each, `subjects` (N,) of whom each is, None where
    that is not known of all; `classes` and `channels` their names; `mean`, `std` float32 (C,) of the training
    data. It can be pickled: only the row numbers and the statistics travel.

    `steps` is T, the length of every batch: that of the dataset's longest sequence in any split. So training,
    validation, test and the deployed model have one shape, which CUDA graphs, compiled steps and learned
    positions need. Nothing else about the test split is known to training.
    """

    def __init__(self, cache: Cache, rows: np.ndarray, mean: Tensor, std: Tensor) -> None:
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
        found = [self.file.subjects[row] for row in self._rows]
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
        x = torch.from_numpy(self.file.padded(rows))  # (B, C, T)
        return x, padding_mask(torch.from_numpy(self.file.lengths[rows]), self.steps)

    def gather(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """The sequences at `indices` (B,) on the CPU, copied: x float32 (B, C, T) and mask bool (B, T).

        x is normalised, and 0 behind each sequence's end, where the mask is False. Raises IndexError for an
        index that is not in -N..N-1.
        """
        x, mask = self.raw(indices)
        normalise_in_place(x.numpy(), mask.numpy(), self.mean.numpy(), self.std.numpy())
        return x, mask

    def subset(self, indices: Tensor | np.ndarray | Sequence[int]) -> "Sequences":
        """A view of the sequences at `indices`, normalised alike; no values are copied."""
        rows = self._rows[np.asarray(indices, dtype=np.int64)]
        return Sequences(self.file, rows, self.mean, self.std)


def open_sequences(
    source: str, split: str, *, path: str | Path | None = None, subset: float = 1.0, validation: float = SHARE
) -> Sequences:
    """Opens one split of a source, reading the dataset into its cache if need be.

    validation: about the share of the training data that becomes "validation", where the dataset has none of
    its own: of the subjects where these are known, else of each class. subset: about the share of each class
    of "train" and "validation" that is used; "test" is always whole. What is then in "train" decides how all
    splits are normalised.

    Raises InputError for an unknown source or split, a fraction out of range, and for everything that
    `automl.data.sequences.sources.opened` refuses.
    """
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    cache = opened(source, path)
    rows = _splits(cache, subset, validation)
    train = rows["train"]
    mean, std = statistics(cache.lengths[train], cache.means[train], cache.variances[train])
    return Sequences(cache, rows[split], mean, std)


def make_manifest(
    source: str, *, path: str | Path | None = None, subset: float = 1.0, validation: float = SHARE
) -> Manifest:
    """Which sequences are in which split as `open_sequences` makes them, with a hash of each one's values.

    Raises InputError like `open_sequences`.
    """
    cache = opened(source, path)
    names, kinds = cache.names, cache.classes
    return Manifest.of(
        {
            split: [
                (names[row], kinds[cache.labels[row]], cache.contents[row].tobytes()) for row in rows.tolist()
            ]
            for split, rows in _splits(cache, subset, validation).items()
        }
    )


def describe_splits(source: str, *, path: str | Path | None = None, subset: float = 1.0) -> dict[str, str]:
    """How `open_sequences` comes to each split with these arguments, in words. Raises InputError like it."""
    cache = opened(source, path)
    own = _own(cache)
    held = _splits(cache, 1.0, SHARE)
    part = "" if subset == 1 else f"about {subset:.3g} of each class of "
    told = dict.fromkeys(SPLITS, "the dataset's own")
    if "test" not in own:
        told["test"] = _carved(cache, held["test"], own["train"], "all", "the {}")
    if "validation" not in own:
        train = np.union1d(held["train"], held["validation"])
        told["train"] = "the training sequences, less those for validation"
        told["validation"] = _carved(cache, held["validation"], train, "the training", "the {} training")
    return {split: words if split == "test" else f"{part}{words}" for split, words in told.items()}


def _carved(cache: Cache, held: np.ndarray, of: np.ndarray, all_of: str, number_of: str) -> str:
    subjects = {cache.subjects[row] for row in of}
    if None in subjects:
        return f"about {SHARE:.0%} of {all_of} sequences, of each class, chosen by their content"
    out = {cache.subjects[row] for row in held}
    return f"the sequences of {len(out)} of {number_of.format(len(subjects))} subjects, chosen by their names"


def _own(cache: Cache) -> dict[str, np.ndarray]:
    """The rows of the splits that the dataset brings."""
    found = {split: np.flatnonzero(cache.parts == i) for i, split in enumerate(SPLITS)}
    return {split: rows for split, rows in found.items() if len(rows)}


def _splits(cache: Cache, subset: float, validation: float) -> Mapping[str, np.ndarray]:
    """The rows of each split."""
    if not 0 < subset <= 1:
        raise InputError(f"subset must be above 0 and at most 1, not {subset}; 1 takes every sequence")
    if not 0 < validation < 1:
        raise InputError(f"validation must lie between 0 and 1, not {validation}; 0.2 is usual")
    found = _own(cache)
    for split, share in (("test", SHARE), ("validation", validation)):
        if split not in found:
            rows = found["train"]
            held, kept = hold_out(
                cache.labels[rows],
                cache.classes,
                cache.contents[rows],
                [cache.subjects[row] for row in rows],
                share,
                split,
            )
            found |= {split: rows[held], "train": rows[kept]}
    for split in ("train", "validation"):
        rows = found[split]
        found[split] = rows[thinned(cache.labels[rows], cache.contents[rows], subset)]
    return {split: found[split] for split in SPLITS}

"""Splits of sequences for the training loop: labels in memory, values gathered from a memory map.

Each channel is normalised to mean 0 and standard deviation 1 over the training data. Only real steps count
for these. Padding becomes 0, which is also the mean of real values. So does a channel without any value.

Validation and test hold out whole subjects. Two recordings of one person are alike. With one of them in
training and the other held out, a model that knows the person would look like one that knows the activity. A
hash of its name assigns a subject, so that adding, removing or changing others moves nothing, except that
each side has at least one subject.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from automl.base.errors import InputError, unknown
from automl.data.overview import Overview
from automl.data.records import Records
from automl.data.splits import SPLITS, TEST, VALIDATION, hash_fractions, hash_names
from automl.tasks.sequence_classification.data.formats import open_source
from automl.tasks.sequence_classification.data.reading import SequenceCache
from search.class_statistics import describe_imbalance


def hold_out_subjects(
    labels: np.ndarray, classes: Sequence[str], subjects: Sequence[str | None], fraction: float, split: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted indices of the `split` "test" or "validation" and those of the rest, int64.

    `labels` `(N,)` are indices of `classes`. `fraction` is about the part of the subjects to hold out, at
    least one of them. Raises InputError if nothing can be held out, or a class would have no training data.
    """
    names, of = np.unique(np.array(subjects, dtype=str), return_inverse=True)
    held = choose_subjects(names.tolist(), fraction, split)[of]
    kept = np.bincount(labels[~held], minlength=len(classes))
    for label in np.flatnonzero((kept == 0) & (np.bincount(labels[held], minlength=len(classes)) > 0))[:1]:
        raise InputError(
            f"class {classes[label]!r} would have no training data: a {split} split consists of whole "
            f"subjects, and it has all subjects of this class. Remove the subjects, or define the splits "
            f"yourself"
        )
    return np.flatnonzero(held), np.flatnonzero(~held)


def choose_subjects(names: Sequence[str], fraction: float, split: str) -> np.ndarray:
    """Return whether each subject is held out, bool `(N,)`: about a `fraction`, at least one and not all."""
    if len(names) < 2:
        raise InputError(
            f"a {split} split of whole subjects needs at least two subjects; got one, {names[0]!r}. Remove "
            f"the subjects, or define the splits yourself"
        )
    hashes = hash_fractions(hash_names(names), TEST if split == "test" else VALIDATION)
    held: np.ndarray = hashes < fraction
    held[hashes.argmin()] = True
    held[hashes.argmax()] = False
    return held


class Sequences:
    """N sequences of C channels, in an order of their own.

    It can be pickled: only the row numbers and the statistics are sent.

    Attributes:
        labels: int64 `(N,)`.
        lengths: number of real steps of each sequence, int64 `(N,)`.
        subjects: the subject of each sequence; None unless all are known.
        classes: names of the classes.
        channels: names of the channels.
        mean, std: statistics of the training data, float32 `(C,)`.
        steps: T, the length of every batch. It is that of the longest sequence of the dataset in any split,
            so that training, validation, test and the deployed model have one shape, as CUDA graphs, compiled
            steps and learned positions need. Training uses nothing else of the test split.
    """

    def __init__(self, cache: SequenceCache, rows: np.ndarray, mean: Tensor, std: Tensor) -> None:
        self.file, self._rows = cache, rows
        self.labels: Tensor = torch.from_numpy(cache.labels[rows].astype(np.int64))
        self.lengths: Tensor = torch.from_numpy(cache.lengths[rows])
        self.classes, self.channels, self.steps = cache.classes, cache.channels, cache.steps
        self.mean, self.std = mean, std

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def subjects(self) -> list[str] | None:
        subjects = [self.file.groups[row] for row in self._rows]
        known = [subject for subject in subjects if subject is not None]
        return known if len(known) == len(subjects) else None

    def names(self) -> list[str]:
        """Return the names of the sequences: those of the data, or `train/0`, the position in the file."""
        names = self.file.names
        return [names[row] for row in self._rows]

    def values(self, index: int) -> np.ndarray:
        """Return a sequence as stored, float32 `(C, T)`, read-only; NaN in channels without any value."""
        return self.file.values(int(self._rows[index]))

    def raw(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return a batch as a deployed model gets it: not normalised, NaN in channels without values."""
        rows = self._rows[indices.cpu().numpy()]
        x = torch.from_numpy(self.file.read_padded(rows))  # (B, C, T)
        return x, padding_mask(torch.from_numpy(self.file.lengths[rows]), self.steps)

    def gather(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sequences at `indices` `(B,)`, copied to the CPU: x float32 `(B, C, T)` and mask bool
        `(B, T)`.

        x is normalised. After the end of each sequence x is 0 and the mask is False. Raises IndexError for an
        index that is not in -N..N-1.
        """
        x, mask = self.raw(indices)
        normalise_in_place(x.numpy(), mask.numpy(), self.mean.numpy(), self.std.numpy())
        return x, mask


class SequenceRecords(Records[SequenceCache]):
    """All sequences of a source. A split is held out by class, or by whole subjects if all are known."""

    noun = "sequences"
    group_noun = "subject"
    stratum = "class"

    def labels(self, rows: np.ndarray) -> np.ndarray:
        labels: np.ndarray = self.file.labels[rows]
        return labels

    def class_name(self, row: int) -> str:
        return self.file.classes[int(self.file.labels[row])]

    def hold_out(self, rows: np.ndarray, split: str, fraction: float) -> tuple[np.ndarray, np.ndarray]:
        subjects = [self.file.groups[row] for row in rows]
        if None in subjects:
            return super().hold_out(rows, split, fraction)
        return hold_out_subjects(self.labels(rows), self.file.classes, subjects, fraction, split)


def open_sequences(
    source: str, split: str, *, path: str | Path | None = None, subset: float = 1.0
) -> Sequences:
    """Open one split of a source. Reads the dataset into its cache if needed.

    All splits are normalised by the statistics of the "train" split after `subset` is applied: about this
    fraction of each class of "train" and "validation", while "test" is whole. Without `path`, the source is
    downloaded. Raises InputError if source or split is unknown, and as `open_source`.
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
    """Open all splits of a source. Raises InputError like `open_sequences`."""
    return SequenceRecords(open_source(source, path), subset)


def compute_statistics(
    lengths: np.ndarray, means: np.ndarray, variances: np.ndarray
) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of each channel, float32 `(C,)`, over N sequences.

    A constant channel gets a standard deviation of 1. A channel without any value also gets a mean of 0.
    `lengths` are in steps, `(N,)`. `means` and `variances`, `(N, C)`, are those of each sequence, or NaN.
    """
    weights = np.where(np.isnan(means), 0, lengths[:, None])  # (N, C)
    total = np.maximum(weights.sum(axis=0), 1)
    mean = (weights * np.nan_to_num(means)).sum(axis=0) / total
    spread = np.nan_to_num(variances + (means - mean) ** 2)
    std = np.sqrt((weights * spread).sum(axis=0) / total)
    # Rounding errors of the mean leave a constant channel with a tiny spread, a few units of the 53rd bit.
    std[std <= np.maximum(1e-12 * np.abs(mean), np.finfo(np.float32).tiny)] = 1
    return torch.from_numpy(mean.astype(np.float32)), torch.from_numpy(std.astype(np.float32))


def normalise(x: Tensor, mask: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Return `x` `(B, C, T)` normalised by `(C,)`, as a deployed model does it; 0 where `mask` is False."""
    x = (x - mean[:, None]) / std[:, None]  # (B, C, T)
    return torch.where(mask[:, None] & ~x.isnan(), x, 0.0)


def normalise_in_place(x: np.ndarray, mask: np.ndarray, mean: np.ndarray, std: np.ndarray) -> None:
    """Normalise a batch of arrays in place, like `normalise`.

    It runs in one thread. On a busy machine PyTorch's threads wait for each other at every operation, which
    took 100 times as long as the whole function.
    """
    x -= mean[:, None]
    x /= std[:, None]
    np.copyto(x, 0.0, where=~mask[:, None] | np.isnan(x))


def padding_mask(lengths: Tensor, steps: int) -> Tensor:
    """Return a mask, bool `(B, steps)`, that is True at the first `lengths` `(B,)` steps."""
    return torch.arange(steps, device=lengths.device) < lengths[:, None]


SHOWN = 20  # most classes and channels that are listed


def summarise_sequences(path: str | Path) -> Overview:
    """Return the overview of a dataset. Raises InputError like `open_sequences`."""
    splits = {split: open_sequences("series", split, path=path) for split in SPLITS}
    train, records = splits["train"], open_sequence_records("series", path=path)
    counts = {
        split: torch.bincount(sequences.labels, minlength=len(train.classes)).tolist()
        for split, sequences in splits.items()
    }
    classes = {name: {split: counts[split][i] for split in SPLITS} for i, name in enumerate(train.classes)}
    lengths = np.concatenate([sequences.lengths.numpy() for sequences in splits.values()])
    least, median, most = int(lengths.min()), int(np.median(lengths)), int(lengths.max())
    channels = {
        name: (float(mean), float(sd))
        for name, mean, sd in zip(train.channels, train.mean, train.std, strict=True)
    }
    shown = [f"{name} {mean:.3g} ± {sd:.3g}" for name, (mean, sd) in list(channels.items())[:SHOWN]]
    numbers = {split: len(sequences) for split, sequences in splits.items()}
    subjects = {split: sequences.subjects for split, sequences in splits.items()}
    known = {split: len(set(names)) for split, names in subjects.items() if names is not None}
    known = known if len(known) == len(SPLITS) else {}
    hidden = f"{len(classes) - SHOWN} more classes" if len(classes) > SHOWN else ""
    return Overview(
        {
            **dict(list(classes.items())[:SHOWN]),
            "sequences": numbers,
            **({"subjects": known} if known else {}),
        },
        how=records.describe_splits(),
        tally=records.tally,
        notes={
            "...": hidden,
            "balance": describe_imbalance({name: row["train"] for name, row in classes.items()}),
            "steps": f"{most}" if least == most else f"{least} to {most}, median {median}",
            "channels": f"{len(channels)}: {', '.join(shown)}{', ...' * (len(channels) > SHOWN)}",
        },
        sequences=numbers,
        classes=classes,
        steps=(least, median, most),
        channels=channels,
        subjects=known,
    )

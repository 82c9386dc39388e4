"""Summarise a dataset of sequences: splits, classes, lengths, channels and subjects."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from automl.data.splits import SPLITS
from automl.data.tally import Tally
from automl.tasks.sequence_classification.data.dataset import open_sequence_records, open_sequences
from search.class_statistics import describe_imbalance

SHOWN = 20  # most classes and channels that are listed


@dataclass(frozen=True, kw_only=True)
class SequenceOverview:
    """Figures that `automl data` prints about a dataset of sequences.

    Attributes:
        sequences: number of sequences of each split.
        classes: number of sequences by class and split.
        how: how each split was made.
        tally: subjects that are in two splits.
        steps: the shortest, the median and the longest length.
        channels: mean and standard deviation of each channel in the training data.
        subjects: number of subjects of each split; empty if they are unknown.
    """

    sequences: Mapping[str, int]
    classes: Mapping[str, Mapping[str, int]]
    how: Mapping[str, str]
    tally: Tally
    steps: tuple[int, int, int]
    channels: Mapping[str, tuple[float, float]]
    subjects: Mapping[str, int]

    def lines(self) -> Iterator[str]:
        width = max(11, *(len(name) + 1 for name in list(self.classes)[:SHOWN]))
        yield f"{'':{width}}" + "".join(f"{split:>12}" for split in SPLITS)
        for name, counts in list(self.classes.items())[:SHOWN]:
            yield f"{name:{width}}" + "".join(f"{counts[split]:>12}" for split in SPLITS)
        if len(self.classes) > SHOWN:
            yield f"{'...':{width}}{len(self.classes) - SHOWN} more classes"
        yield f"{'sequences':{width}}" + "".join(f"{self.sequences[split]:>12}" for split in SPLITS)
        if text := describe_imbalance({name: counts["train"] for name, counts in self.classes.items()}):
            yield f"{'balance':{width}} {text}"
        if self.subjects:
            yield f"{'subjects':{width}}" + "".join(f"{self.subjects[split]:>12}" for split in SPLITS)
        for split, how in self.how.items():
            yield f"{split:{width}} {how}"
        if self.tally:
            yield str(self.tally)
        least, median, most = self.steps
        yield f"{'steps':{width}} " + (f"{most}" if least == most else f"{least} to {most}, median {median}")
        shown = [f"{name} {mean:.3g} ± {sd:.3g}" for name, (mean, sd) in list(self.channels.items())[:SHOWN]]
        more = ", ..." if len(self.channels) > SHOWN else ""
        yield f"{'channels':{width}} {len(self.channels)}: {', '.join(shown)}{more}"


def summarise_sequences(path: str | Path) -> SequenceOverview:
    """Return the overview of a dataset. Raises InputError like `open_sequences`."""
    splits = {split: open_sequences("series", split, path=path) for split in SPLITS}
    train, records = splits["train"], open_sequence_records("series", path=path)
    counts = {
        split: torch.bincount(sequences.labels, minlength=len(train.classes))
        for split, sequences in splits.items()
    }
    lengths = np.concatenate([sequences.lengths.numpy() for sequences in splits.values()])
    subjects = {split: sequences.subjects for split, sequences in splits.items()}
    known = {split: len(set(names)) for split, names in subjects.items() if names is not None}
    return SequenceOverview(
        sequences={split: len(sequences) for split, sequences in splits.items()},
        classes={
            name: {split: int(counts[split][i]) for split in SPLITS} for i, name in enumerate(train.classes)
        },
        how=records.describe_splits(),
        tally=records.tally,
        steps=(int(lengths.min()), int(np.median(lengths)), int(lengths.max())),
        channels={
            name: (float(mean), float(sd))
            for name, mean, sd in zip(train.channels, train.mean, train.std, strict=True)
        },
        subjects=known if len(known) == len(SPLITS) else {},
    )

"""The result of all readers of sequences, and the checks that they share.

A reader (`ts`, `ucihar`, `long_csv`, `npz`) checks what is specific to its format. Faults that all formats
can have are found here.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from automl.base.errors import InputError
from automl.tasks.sequence_classification.data.number_text import quote

WHOLE = re.compile("-?[0-9]{1,18}")
MIN_STEPS = 2  # A single value is no time series.


@dataclass(frozen=True, kw_only=True)
class SplitSequences:
    """The N sequences of one split of a dataset.

    Attributes:
        values: each sequence, float32 `(C, T)` with a T of its own; NaN for a missing value.
        labels: `(N,)`.
        names: `(N,)`.
        locate: returns file and line of a sequence for messages.
        subjects: the person recorded in each sequence, `(N,)`; None if unknown.
    """

    values: Sequence[np.ndarray]
    labels: Sequence[str]
    names: Sequence[str]
    locate: Callable[[int], str]
    subjects: Sequence[str] | None = None


@dataclass(frozen=True, kw_only=True)
class Recording:
    """A whole dataset.

    Attributes:
        channels: names of the channels.
        classes: names of the classes of the train split.
        splits: the sequences by split: "train" and any others that the dataset defines.
    """

    channels: tuple[str, ...]
    classes: tuple[str, ...]
    splits: Mapping[str, SplitSequences]


def make_recording(
    channels: Iterable[str], classes: Iterable[str], splits: Mapping[str, SplitSequences]
) -> Recording:
    """Check the splits of a reader and return them as a dataset.

    Classes keep their order, and those without training data are dropped.

    Raises InputError with file and line for a sequence of one step, with no value or an infinite one, for a
    label that the train split does not have, and for fewer than two classes.
    """
    for sequences in splits.values():
        _check_values(sequences)
    train = splits["train"]
    labels = set(train.labels)
    known = tuple(name for name in classes if name in labels)
    if len(known) < 2:
        raise InputError(
            f"the train split needs sequences of two classes; it has {len(train.labels)}, of "
            f"{', '.join(map(repr, known)) or 'no class'}{_describe_start(train)}"
        )
    for split, sequences in splits.items():
        for i, label in enumerate(sequences.labels):
            if label not in labels:
                raise InputError(
                    f"{sequences.locate(i)}: the {split} label {quote(label)} must be among those of the "
                    f"train split: {', '.join(known[:20])}"
                )
    return Recording(channels=tuple(channels), classes=known, splits=splits)


def sort_labels(labels: Iterable[str]) -> list[str]:
    """Return each label once, sorted: as numbers if all are integers."""
    names = sorted(set(labels))
    return sorted(names, key=int) if all(WHOLE.fullmatch(name) for name in names) else names


def _check_values(sequences: SplitSequences) -> None:
    for i, values in enumerate(sequences.values):
        if values.shape[1] < MIN_STEPS:
            raise InputError(
                f"{sequences.locate(i)}: a sequence must have at least {MIN_STEPS} steps; "
                f"got {values.shape[1]}. Remove it"
            )
        if np.isfinite(values).all():
            continue
        if np.isinf(values).any():
            raise InputError(
                f"{sequences.locate(i)}: values must be finite and fit into 32 bits; one is infinite"
            )
        if np.isnan(values).all():
            raise InputError(f"{sequences.locate(i)}: all values of the sequence are missing; remove it")


def _describe_start(sequences: SplitSequences) -> str:
    return f", from {sequences.locate(0)} on" if len(sequences.labels) else ""

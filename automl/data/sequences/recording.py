"""What all formats of sequences are read into, and the checks that they share.

A reader (`ts`, `ucihar`, `long_csv`, `npz`) checks what is particular to its format; what is wrong in all of
them is found here.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from attention.errors import InputError
from automl.data.sequences.number_text import quote

WHOLE = re.compile("-?[0-9]{1,18}")
MIN_STEPS = 2  # one value has no course in time


@dataclass(frozen=True, kw_only=True)
class SplitSequences:
    """The N sequences that a dataset has for one split.

    values: of each, float32 (C, T) with a T of its own; NaN where a value is missing.
    labels, names: (N,). subjects: (N,), of whom each was recorded; None where unknown.
    place: where a sequence stands, for messages: file and line.
    """

    values: Sequence[np.ndarray]
    labels: Sequence[str]
    names: Sequence[str]
    locate: Callable[[int], str]
    subjects: Sequence[str] | None = None


@dataclass(frozen=True, kw_only=True)
class Recording:
    """A whole dataset. parts: by split, "train" and what else it brings. classes: those to train on."""

    channels: tuple[str, ...]
    classes: tuple[str, ...]
    splits: Mapping[str, SplitSequences]


def make_recording(
    channels: Iterable[str], classes: Iterable[str], parts: Mapping[str, SplitSequences]
) -> Recording:
    """The dataset of what a reader found. classes: in their order; those without training data are dropped.

    Raises InputError, with file and line, for a sequence of one step, without any value or with an infinite
    one, for a label that training does not know, and for fewer than two classes.
    """
    for part in parts.values():
        _check_values(part)
    train = parts["train"]
    there = set(train.labels)
    known = tuple(name for name in classes if name in there)
    if len(known) < 2:
        raise InputError(
            f"a dataset needs sequences of two classes to train on; there are {len(train.labels)} in all, "
            f"of {', '.join(map(repr, known)) or 'no class'}{_describe_start(train)}"
        )
    for split, part in parts.items():
        for i, label in enumerate(part.labels):
            if label not in there:
                raise InputError(
                    f"{part.locate(i)}: the {split} label {quote(label)} must be among those to train on: "
                    f"{', '.join(known[:20])}"
                )
    return Recording(channels=tuple(channels), classes=known, splits=parts)


def sort_labels(labels: Iterable[str]) -> list[str]:
    """Each label once, sorted: as numbers where all are whole numbers."""
    names = sorted(set(labels))
    return sorted(names, key=int) if all(WHOLE.fullmatch(name) for name in names) else names


def _check_values(part: SplitSequences) -> None:
    for i, values in enumerate(part.values):
        if values.shape[1] < MIN_STEPS:
            raise InputError(
                f"{part.locate(i)}: a sequence needs {MIN_STEPS} steps or more, not {values.shape[1]}; "
                f"leave it out"
            )
        if np.isfinite(values).all():
            continue
        if np.isinf(values).any():
            raise InputError(f"{part.locate(i)}: values must be finite and fit into 32 bits; one is infinite")
        if np.isnan(values).all():
            raise InputError(f"{part.locate(i)}: all values of the sequence are missing; leave it out")


def _describe_start(part: SplitSequences) -> str:
    return f", from {part.locate(0)} on" if len(part.labels) else ""

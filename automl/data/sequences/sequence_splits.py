"""Which sequence is in which split where their subjects are known: whole subjects.

What one person does in two recordings is alike; with one of them in training and the other held out, a model
that knows the person would look like one that knows the activity. So all of a subject is on one side. Each
subject is assigned by a hash of its own name, so that adding, removing or changing others moves nothing,
except that at least one subject is on either side.
"""

from collections.abc import Sequence

import numpy as np

from attention.errors import InputError
from automl.data.splits import TEST, VALIDATION, hash_fractions, hash_names


def hold_out_subjects(
    labels: np.ndarray, classes: Sequence[str], subjects: Sequence[str | None], share: float, split: str
) -> tuple[np.ndarray, np.ndarray]:
    """The sorted indices of the `split` "test" or "validation" and those of the rest, int64.

    labels: (N,), indices of `classes`. subjects: (N,), of which about a `share` is held out, at least one.

    Raises InputError when nothing can be held out, or nothing would be left of a class to train on.
    """
    names, of = np.unique(np.array(subjects, dtype=str), return_inverse=True)
    out = choose_subjects(names.tolist(), share, split)[of]
    kept = np.bincount(labels[~out], minlength=len(classes))
    for label in np.flatnonzero((kept == 0) & (np.bincount(labels[out], minlength=len(classes)) > 0))[:1]:
        raise InputError(
            f"of class {classes[label]!r} nothing would be left to train on: a {split} split is of whole "
            f"subjects, and it has all that have this class; leave the subjects out, or give the splits "
            f"yourself"
        )
    return np.flatnonzero(out), np.flatnonzero(~out)


def choose_subjects(names: Sequence[str], share: float, split: str) -> np.ndarray:
    """Which of the subjects are held out, bool (N,): about a `share` of them, at least one and not all."""
    if len(names) < 2:
        raise InputError(
            f"a {split} split of whole subjects needs two or more; there is one, {names[0]!r}; leave the "
            f"subjects out, or give the splits yourself"
        )
    at = hash_fractions(hash_names(names), TEST if split == "test" else VALIDATION)
    out: np.ndarray = at < share
    out[at.argmin()] = True
    out[at.argmax()] = False
    return out

"""Hold out whole subjects for validation and test.

Two recordings of one person are alike. With one of them in training and the other held out, a model that
knows the person would look like one that knows the activity. So all recordings of a subject are in one split.
A hash of its name assigns a subject, so that adding, removing or changing others moves nothing, except that
each side has at least one subject.
"""

from collections.abc import Sequence

import numpy as np

from automl.base.errors import InputError
from automl.data.splits import TEST, VALIDATION, hash_fractions, hash_names


def hold_out_subjects(
    labels: np.ndarray, classes: Sequence[str], subjects: Sequence[str | None], fraction: float, split: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted indices of the `split` "test" or "validation" and those of the rest, int64.

    Args:
        labels: indices of `classes`, `(N,)`.
        classes: names of the classes.
        subjects: the subject of each sequence.
        fraction: the approximate fraction of the subjects to hold out, at least one of them.
        split: "test" or "validation".

    Raises:
        InputError: Nothing can be held out, or a class would have no training data.
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

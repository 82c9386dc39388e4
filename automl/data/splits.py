"""Which inputs are held out, and which are used when there are too many: the first of a class by their hash.

Each input has a key, the hash of its content, and each decision ranks the inputs of a class by 64 bits of it.
A test split of a fifth is the first fifth by rank. So its share is exact, to the nearest input, and an input
that is added or removed moves at most one other of its class, the one at the end of the share. Where a
validation split is held out of what a test split leaves, that holds for each of the two. Order and names
change nothing. No seed enters, since a split that moved with a trial's seed would let one trial train on
inputs that another is judged by.

Copies have one key, count once and stay together, also those in different classes.

Groups are held out as a whole, in the order of the hashes of their names, so their shares are not exact
(`automl.data.groups`). Subjects of sequences and near duplicates of functions are decided by their number
alone, which is below the share or not (`numbers`): moving one would move many inputs at once.
"""

import hashlib
from collections.abc import Iterable, Sequence, Sized

import numpy as np

from attention.errors import InputError
from automl.data.groups import assign_units, hold_out_units

SPLITS = ("train", "validation", "test")
TEST, VALIDATION, SUBSET = range(3)  # the 64 bits of a key that decide on it
FRACTION = 0.2  # of what a test or validation split is carved from
HALF = 0.5  # of the images for validation, for test, where there is none
RULE = 3  # number of this rule; raise it whenever the same inputs would be split differently


def pack_keys(contents: Iterable[bytes]) -> np.ndarray:
    """Pack the SHA-256 of each input's content into keys, uint8 (N, 32)."""
    return np.frombuffer(b"".join(contents), np.uint8).reshape(-1, 32)


def hash_names(names: Iterable[str]) -> np.ndarray:
    """Hash names to keys, uint8 (N, 32), where the content does not identify an input."""
    return pack_keys(hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest() for name in names)


def hash_fractions(keys: np.ndarray, purpose: int) -> np.ndarray:
    """Return the number from 0 to 1 by which each of `keys` (N, 32), uint8, is decided: float64 (N,)."""
    return _bits(keys, purpose) / 2.0**64


def hold_out_split(
    labels: np.ndarray,
    keys: np.ndarray,
    fraction: float,
    split: str,
    noun: str = "inputs",
    groups: Sequence[str | None] = (),
) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted indices of the `split` "test" or "validation" and those of the rest, int64.

    `labels` (N,) are integers from 0, `keys` (N, 32) uint8, 0 < `fraction` < 1. Of a class of n different
    inputs, `fraction * n` to the nearest integer are held out, but at least one, and not all. A class with
    one input only is not split. groups: of each input; where any has one, whole groups are held out.

    Raises InputError when no class has an input, or a group, to spare.
    """
    assert 0 < fraction < 1, fraction
    purpose, grouped = TEST if split == "test" else VALIDATION, any(groups)
    if grouped:
        alone = np.array([not group for group in groups])
        of_groups = np.where(alone[:, None], keys, hash_names(group or "" for group in groups))
        held = hold_out_units(labels, assign_units(_bits(keys, purpose), _bits(of_groups, purpose)), fraction)
    else:
        held = _first_by_rank(labels, keys, fraction, purpose, spare=1)
    if not held.any():
        needed, apart, add = f"different {noun}", "", noun
        if grouped:
            needed, apart, add = f"groups of {noun}", " with no copies in common", "groups, leave them out"
        raise InputError(
            f"a {split} split needs two {needed}{' of one class' if labels.any() else ''}{apart}; there are "
            f"none among {len(labels)} {noun}; add {add}, or give the splits yourself"
        )
    return np.flatnonzero(held), np.flatnonzero(~held)


def select_subset(labels: np.ndarray, keys: np.ndarray, fraction: float) -> np.ndarray:
    """Return the sorted indices of a fraction 0 < `fraction` <= 1 of each class, at least one of each.

    A larger fraction has the same inputs and more.
    """
    return np.flatnonzero(_first_by_rank(labels, keys, fraction, SUBSET))


def single_class(inputs: Sized) -> np.ndarray:
    """Return labels, int64 (N,), for inputs that are split without regard to classes."""
    return np.zeros(len(inputs), np.int64)


def _bits(keys: np.ndarray, purpose: int) -> np.ndarray:
    return keys.reshape(-1, 4, 8)[:, purpose].copy().view(">u8")[:, 0].astype(np.uint64)


def _first_by_rank(
    labels: np.ndarray, keys: np.ndarray, fraction: float, purpose: int, *, spare: int = 0
) -> np.ndarray:
    """Return whether each input is in the first `fraction` of its class, bool (N,).

    At least one of each class is chosen, unless `spare` contents are to be left over. A content in several
    classes is ranked in the first of them.
    """
    contents, copy_of = np.unique(_bits(keys, purpose), return_inverse=True)  # ascending
    classes = int(labels.max(initial=-1)) + 1
    kinds = np.full(len(contents), classes)
    np.minimum.at(kinds, copy_of, labels)
    counts = np.bincount(kinds, minlength=classes)
    wanted = np.clip(np.floor(fraction * counts + 0.5), 1, np.maximum(counts - spare, 0))
    order = kinds.argsort(kind="stable")
    ranks = np.empty(len(contents), np.int64)
    ranks[order] = np.arange(len(contents)) - (counts.cumsum() - counts)[kinds[order]]
    chosen: np.ndarray = (ranks < wanted[kinds])[copy_of]
    return chosen

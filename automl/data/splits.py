"""Hold out inputs for test and validation, and select subsets, by a hash of each input.

Each input has a key, the hash of its content. Each decision ranks the inputs of a class by 64 bits of it. A
test split of a fifth is the first fifth by rank. So its size is exact to the nearest input, and adding or
removing an input moves at most one other input of its class, the one at the boundary. If a validation split
is held out of the rest, that holds for each of the two. Order and names have no effect. No seed is used: a
split that changed with a trial's seed would let one trial train on inputs that another is scored on.

Copies have one key. They count once and stay together, even in different classes.

Groups are held out as a whole, in the order of the hashes of their names, so their fractions are not exact
(`automl.data.groups`). For subjects of sequences and near duplicates of functions only the hash itself
decides, whether it is below the fraction (`hash_fractions`): moving one of these would move many inputs at
once.
"""

import hashlib
from collections.abc import Iterable, Sequence, Sized

import numpy as np

from automl.base.errors import InputError
from automl.data.groups import assign_units, hold_out_units

SPLITS = ("train", "validation", "test")
SPLIT_NAMES = {
    "train": ("train", "training"),
    "validation": ("val", "valid", "validation"),
    "test": ("test", "testing"),
}
TEST, VALIDATION, SUBSET = range(3)  # which 64 bits of a key decide
FRACTION = 0.2  # of the inputs that are held out for test or validation
HALF = 0.5  # of the validation images, for a missing test split
RULE = 3  # Raise it whenever the same inputs would be split differently.


def pack_keys(contents: Iterable[bytes]) -> np.ndarray:
    """Pack the SHA-256 of each input's content into keys, uint8 `(N, 32)`."""
    return np.frombuffer(b"".join(contents), np.uint8).reshape(-1, 32)


def hash_names(names: Iterable[str]) -> np.ndarray:
    """Hash names to keys, uint8 `(N, 32)`, if the content does not identify an input."""
    return pack_keys(hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest() for name in names)


def hash_fractions(keys: np.ndarray, purpose: int) -> np.ndarray:
    """Return a number from 0 to 1 for each of `keys` `(N, 32)` uint8, float64 `(N,)`."""
    return _bits(keys, purpose) / 2.0**64


def hold_out_split(
    labels: np.ndarray,
    keys: np.ndarray,
    fraction: float,
    split: str,
    noun: str = "inputs",
    groups: Sequence[str | None] = (),
) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted indices of a test or validation split and those of the rest, int64.

    Of a class of n different inputs, `fraction * n` are held out, rounded to the nearest integer, but at
    least one and not all. A class with only one input is not split.

    Args:
        labels: integers from 0, `(N,)`.
        keys: uint8 `(N, 32)`.
        fraction: between 0 and 1.
        split: "test" or "validation".
        noun: the name of the inputs in messages.
        groups: the group of each input; if any has one, whole groups are held out.

    Raises:
        InputError: No class has an input, or a group, to spare.
    """
    assert 0 < fraction < 1, fraction
    purpose, grouped = TEST if split == "test" else VALIDATION, any(groups)
    if grouped:
        is_alone = np.array([not group for group in groups])
        group_keys = np.where(is_alone[:, None], keys, hash_names(group or "" for group in groups))
        units = assign_units(_bits(keys, purpose), _bits(group_keys, purpose))
        held = hold_out_units(labels, units, fraction)
    else:
        held = _first_by_rank(labels, keys, fraction, purpose, spare=1)
    if not held.any():
        needed, apart, add = f"different {noun}", "", noun
        if grouped:
            needed, apart, add = f"groups of {noun}", " without common copies", "groups, remove the groups"
        raise InputError(
            f"a {split} split needs two {needed}{' of one class' if labels.any() else ''}{apart}; the "
            f"{len(labels)} {noun} have none. Add {add}, or define the splits yourself"
        )
    return np.flatnonzero(held), np.flatnonzero(~held)


def select_subset(labels: np.ndarray, keys: np.ndarray, fraction: float) -> np.ndarray:
    """Return the sorted indices of a fraction 0 < `fraction` <= 1 of each class, at least one of each.

    A larger fraction has the same inputs and more.
    """
    return np.flatnonzero(_first_by_rank(labels, keys, fraction, SUBSET))


def order_subsets(keys: np.ndarray) -> np.ndarray:
    """Return the order of the inputs of one class in which every subset is a prefix, int64 `(N,)`."""
    return _bits(keys, SUBSET).argsort(kind="stable")


def make_single_class_labels(inputs: Sized) -> np.ndarray:
    """Return labels, int64 `(N,)`, for inputs that are split without regard to classes."""
    return np.zeros(len(inputs), np.int64)


def _bits(keys: np.ndarray, purpose: int) -> np.ndarray:
    return keys.reshape(-1, 4, 8)[:, purpose].copy().view(">u8")[:, 0].astype(np.uint64)


def _first_by_rank(
    labels: np.ndarray, keys: np.ndarray, fraction: float, purpose: int, *, spare: int = 0
) -> np.ndarray:
    """Return whether each input is in the first `fraction` of its class, bool `(N,)`.

    At least one of each class is chosen, unless `spare` contents must be left over. A content in several
    classes is ranked in the first of them.
    """
    contents, copy_of = np.unique(_bits(keys, purpose), return_inverse=True)  # ascending
    classes = int(labels.max(initial=-1)) + 1
    kinds = np.full(len(contents), classes)
    np.minimum.at(kinds, copy_of, labels)
    counts = np.bincount(kinds, minlength=classes)
    counts_to_choose = np.clip(np.floor(fraction * counts + 0.5), 1, np.maximum(counts - spare, 0))
    order = kinds.argsort(kind="stable")
    ranks = np.empty(len(contents), np.int64)
    ranks[order] = np.arange(len(contents)) - (counts.cumsum() - counts)[kinds[order]]
    chosen: np.ndarray = (ranks < counts_to_choose[kinds])[copy_of]
    return chosen

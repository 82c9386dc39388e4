"""Which inputs are held out, and which are used when there are too many: the first of a class by their hash.

Each input has a key, the hash of its content, and each decision ranks the inputs of a class by 64 bits of it.
A test split of a fifth is the first fifth by rank. So its share is exact, to the nearest input, and an input
that is added or removed moves at most one other of its class, the one at the end of the share. Where a
validation split is held out of what a test split leaves, that holds for each of the two. Order and names
change nothing. No seed enters, since a split that moved with a trial's seed would let one trial train on
inputs that another is judged by.

Copies have one key, count once and stay together, also those in different classes.

Groups (subjects, near duplicates of a function) are decided by their number alone, which is below the share
or not (`numbers`): moving a group would move many inputs at once.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sized

import numpy as np

from attention.errors import InputError

SPLITS = ("train", "validation", "test")
TEST, VALIDATION, SUBSET = range(3)  # the 64 bits of a key that decide on it
SHARE = 0.2  # of what a test or validation split is carved from
OWN = "the dataset's own"  # split
RULE = 2  # number of this rule; raise it whenever the same inputs would be split differently


def as_keys(contents: Iterable[bytes]) -> np.ndarray:
    """Pack the SHA-256 of each input's content into keys, uint8 (N, 32)."""
    return np.frombuffer(b"".join(contents), np.uint8).reshape(-1, 32)


def keys_of(names: Iterable[str]) -> np.ndarray:
    """Hash names to keys, uint8 (N, 32), where the content does not identify an input."""
    return as_keys(hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest() for name in names)


def numbers(keys: np.ndarray, purpose: int) -> np.ndarray:
    """Return the number from 0 to 1 by which each of `keys` (N, 32), uint8, is decided: float64 (N,)."""
    return _bits(keys, purpose) / 2.0**64


def carve(labels: np.ndarray, keys: np.ndarray, fraction: float, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted indices of the `split` "test" or "validation" and those of the rest, int64.

    `labels` (N,) are integers from 0, `keys` (N, 32) uint8, 0 < `fraction` < 1. Of a class of n different
    inputs, `fraction * n` to the nearest integer are held out, but at least one, and not all. A class with
    one input only is not split.

    Raises InputError when no class has an input to spare.
    """
    assert 0 < fraction < 1, fraction
    held = _first(labels, keys, fraction, TEST if split == "test" else VALIDATION, spare=1)
    if not held.any():
        raise InputError(
            f"a {split} split needs a class of two different images or more; there is none; add images"
        )
    return np.flatnonzero(held), np.flatnonzero(~held)


def thinned(labels: np.ndarray, keys: np.ndarray, fraction: float, *, least: int = 1) -> np.ndarray:
    """Return the sorted indices of a fraction 0 < `fraction` <= 1 of each class, at least `least` of each.

    A larger fraction has the same inputs and more.
    """
    return np.flatnonzero(_first(labels, keys, fraction, SUBSET, least=least))


def describe(words: Mapping[str, str], noun: str, subset: float, each: str = "") -> dict[str, str]:
    """Describe how each split came about. words: for splits that are not the dataset's own."""
    train = f"the training {noun}, less those for validation" if "validation" in words else OWN
    words = {"train": train, "validation": OWN, "test": OWN, **words}
    part = "" if subset == 1 else f"about {subset:.3g} of {each}"
    return {split: text if split == "test" else part + text for split, text in words.items()}


def carved_words(split: str, noun: str, by: str, *, each: str = "") -> str:
    """Describe a split of about a SHARE that was carved. by: what inputs are chosen by."""
    of = "all" if split == "test" else "the training"
    return f"about {SHARE:.0%} of {of} {noun},{each} chosen by their {by}"


def one_class(inputs: Sized) -> np.ndarray:
    """Return labels, int64 (N,), for inputs that are split without regard to classes."""
    return np.zeros(len(inputs), np.int64)


def _bits(keys: np.ndarray, purpose: int) -> np.ndarray:
    return keys.reshape(-1, 4, 8)[:, purpose].copy().view(">u8")[:, 0].astype(np.uint64)


def _first(
    labels: np.ndarray, keys: np.ndarray, fraction: float, purpose: int, *, least: int = 1, spare: int = 0
) -> np.ndarray:
    """Return whether each input is in the first `fraction` of its class, bool (N,).

    least, spare: contents that are chosen, and left over, in any case. A content in several classes is ranked
    in the first of them.
    """
    contents, copy_of = np.unique(_bits(keys, purpose), return_inverse=True)  # ascending
    classes = int(labels.max(initial=-1)) + 1
    kinds = np.full(len(contents), classes)
    np.minimum.at(kinds, copy_of, labels)
    counts = np.bincount(kinds, minlength=classes)
    wanted = np.clip(np.floor(fraction * counts + 0.5), least, np.maximum(counts - spare, 0))
    order = kinds.argsort(kind="stable")
    ranks = np.empty(len(contents), np.int64)
    ranks[order] = np.arange(len(contents)) - (counts.cumsum() - counts)[kinds[order]]
    chosen: np.ndarray = (ranks < wanted[kinds])[copy_of]
    return chosen

"""Which images are held out, and which are left when there are too many: decided by each image alone.

An image has a key, the hash of its content, and each decision reads 64 bits of it as a number from 0 to 1.
So no other image matters: adding, removing, renaming or changing one moves no other, and copies of an image
stay together. No seed enters, since a split that moved with a trial's seed would let one trial train on
images that another is judged by.

The price is that a class has about its share on either side, not exactly: of 100 images and a share of 0.2,
12 to 28 are held out in 19 of 20 classes. Others matter in one case alone: a class that would have no image
on one side gives it the one whose number is nearest to that side.
"""

import hashlib
from collections.abc import Iterable

import numpy as np

from attention.errors import InputError

TEST, VALIDATION, SUBSET = range(3)  # the 64 bits of a key that decide on it


def numbers(keys: np.ndarray, purpose: int) -> np.ndarray:
    """From 0 to 1, float64 (N,): what decides for each of `keys` (N, 32), uint8."""
    return keys.reshape(-1, 4, 8)[:, purpose].copy().view(">u8")[:, 0] / 2.0**64


def as_keys(contents: Iterable[bytes]) -> np.ndarray:
    """Keys of images by the SHA-256 of their content, uint8 (N, 32)."""
    return np.frombuffer(b"".join(contents), np.uint8).reshape(-1, 32)


def keys_of(names: Iterable[str]) -> np.ndarray:
    """Keys of names, uint8 (N, 32), where the content is not what tells an image."""
    return as_keys(hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest() for name in names)


def carve(labels: np.ndarray, keys: np.ndarray, fraction: float, split: str) -> tuple[np.ndarray, np.ndarray]:
    """The sorted indices of the `split` "test" or "validation" and those of the rest, int64.

    `labels` (N,) are integers from 0, `keys` (N, 32) uint8, 0 < `fraction` < 1. A class of two different
    images or more has one on either side; one that has no two is kept whole.

    Raises InputError when no class has an image to spare.
    """
    assert 0 < fraction < 1, fraction
    at = numbers(keys, TEST if split == "test" else VALIDATION)
    low, high = _ends(labels, at)
    held = at < fraction
    held |= (_count(labels, held) == 0)[labels] & (at == low[labels])
    held &= ~((_count(labels, ~held) == 0)[labels] & (at == high[labels]))
    held &= (low < high)[labels]
    if not held.any():
        raise InputError(
            f"a {split} split needs a class of two different images or more; there is none; add images"
        )
    return np.flatnonzero(held), np.flatnonzero(~held)


def thinned(labels: np.ndarray, keys: np.ndarray, fraction: float) -> np.ndarray:
    """The sorted indices of a fraction 0 < `fraction` <= 1 of each class, at least one image of each.

    A larger fraction has the same images and more.
    """
    if fraction == 1:
        return np.arange(len(labels))
    at = numbers(keys, SUBSET)
    low, _ = _ends(labels, at)
    chosen = at < fraction
    chosen |= (_count(labels, chosen) == 0)[labels] & (at == low[labels])
    return np.flatnonzero(chosen)


def _ends(labels: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The least and the largest number of each class."""
    classes = int(labels.max(initial=-1)) + 1
    low, high = np.full(classes, np.inf), np.full(classes, -np.inf)
    np.minimum.at(low, labels, at)
    np.maximum.at(high, labels, at)
    return low, high


def _count(labels: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    return np.bincount(labels[chosen], minlength=int(labels.max(initial=-1)) + 1)

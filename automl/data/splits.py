"""Which images are held out: the same share of every class, always the same ones.

The seed is fixed. A split that moved with a trial's seed would let one trial train on images that
another is judged by.
"""

import numpy as np

from attention.errors import InputError

SEED = 0


def stratified(labels: np.ndarray, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the sorted indices held out and the sorted indices kept, int64.

    `labels` (N,) are integers, and 0 < `fraction` < 1 is held out of each class, rounded. A class of two
    or more has at least one image on either side; of a class of one the image is kept. A larger
    fraction holds out the same images and more.
    """
    assert 0 < fraction < 1, fraction
    # RandomState's stream is frozen for ever, a Generator's may change from one numpy to the next.
    random = np.random.RandomState(seed)
    held = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        members = random.permutation(np.flatnonzero(labels == label))
        if len(members) > 1:
            count = min(max(round(len(members) * fraction), 1), len(members) - 1)
            held[members[:count]] = True
    return np.flatnonzero(held), np.flatnonzero(~held)


def carve(labels: np.ndarray, fraction: float, split: str) -> tuple[np.ndarray, np.ndarray]:
    """`stratified` with the project's seed, to make `split`.

    Raises InputError when no class has an image to spare.
    """
    held, kept = stratified(labels, fraction, SEED)
    if not len(held):
        raise InputError(
            f"a {split} split needs a class of two images or more; every class has one; add images"
        )
    return held, kept


def thinned(labels: np.ndarray, fraction: float) -> np.ndarray:
    """The sorted indices of a share 0 < `fraction` <= 1 of each class, at least one image of each."""
    return np.arange(len(labels)) if fraction == 1 else stratified(labels, 1 - fraction, SEED)[1]

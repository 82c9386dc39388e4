"""Which split a function is in: decided by a hash of its code up to names.

So no near duplicate is on both sides, and adding a function moves no other.

Where real queries are known, their functions are in the split of the query, with all near duplicates.
"""

import numpy as np

from automl.data.splits import SPLITS, TEST, VALIDATION, hash_fractions, pack_keys

FRACTION = 0.15  # of all functions, for each of test and validation
HOW = "by a hash of the code up to names, so that near duplicates are in one split"


def assign_splits(keys: list[bytes], answers: dict[str, list[int]]) -> np.ndarray:
    """For each function the index of its split in SPLITS, int64 (N,).

    keys: of near duplicates. answers: the functions that real queries of a split have for answers; where two
    splits have the same one, it is the later split's.
    """
    packed = pack_keys(keys)
    test, validation = (
        hash_fractions(packed, TEST) < FRACTION,
        hash_fractions(packed, VALIDATION) < FRACTION / (1 - FRACTION),
    )
    found = np.where(test, 2, np.where(validation, 1, 0)).astype(np.int64)
    for number, split in enumerate(SPLITS):
        fixed = {keys[answer] for answer in answers.get(split, [])}
        found[[i for i, key in enumerate(keys) if key in fixed]] = number
    return found

"""Assign functions to splits by a hash of their code up to names.

Near duplicates are therefore in one split, and adding a function moves no other. If real queries are known,
their functions are in the split of the query, with all near duplicates.
"""

import numpy as np

from automl.data.splits import SPLITS, TEST, VALIDATION, hash_fractions, pack_keys

FRACTION = 0.15  # of all functions, for test and for validation
HOW = "by a hash of the code up to names, so that near duplicates are in one split"


def assign_splits(keys: list[bytes], answers: dict[str, list[int]]) -> np.ndarray:
    """Return the index of each function's split in SPLITS, int64 `(N,)`.

    `keys` are equal for near duplicates. `answers` are the functions that answer the real queries of each
    split. An answer of two splits is in the later one.
    """
    packed = pack_keys(keys)
    test, validation = (
        hash_fractions(packed, TEST) < FRACTION,
        hash_fractions(packed, VALIDATION) < FRACTION / (1 - FRACTION),
    )
    splits = np.where(test, 2, np.where(validation, 1, 0)).astype(np.int64)
    for number, split in enumerate(SPLITS):
        fixed = {keys[answer] for answer in answers.get(split, [])}
        splits[[i for i, key in enumerate(keys) if key in fixed]] = number
    return splits

"""Hold out inputs for test and validation, and select subsets, by a hash of each input.

Each input has a key, the hash of its content. Each decision ranks the inputs of a class by 64 bits of it. A
test split of a fifth is the first fifth by rank. So its size is exact to the nearest input, and adding or
removing an input moves at most one other input of its class, the one at the boundary. If a validation split
is held out of the rest, that holds for each of the two. Order and names have no effect. No seed is used: a
split that changed with a trial's seed would let one trial train on inputs that another is scored on.

Copies have one key. They count once and stay together, even in different classes.

Groups are held out as a whole, in the order of the hashes of their names, so their fractions are not exact.
For subjects of sequences and near duplicates of functions only the hash itself
decides, whether it is below the fraction (`hash_fractions`): moving one of these would move many inputs at
once.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from automl.base.errors import InputError
from automl.data.tally import Tally

SPLITS = ("train", "validation", "test")
SPLIT_NAMES = {
    "train": ("train", "training"),
    "validation": ("val", "valid", "validation"),
    "test": ("test", "testing"),
}
SPLIT_OF = {name: split for split, names in SPLIT_NAMES.items() for name in names}
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
    least one and not all. A class with only one input is not split. If an input has a group, whole groups are
    held out. `labels` are integers from 0, `(N,)`, and `keys` uint8 `(N, 32)`. Raises InputError, with `noun`
    for the inputs, if no class has an input, or a group, to spare.
    """
    assert 0 < fraction < 1, fraction
    purpose, grouped = TEST if split == "test" else VALIDATION, any(groups)
    if grouped:
        is_alone = np.array([not group for group in groups])
        group_keys = np.where(is_alone[:, None], keys, hash_names(group or "" for group in groups))
        units = _assign_units(_bits(keys, purpose), _bits(group_keys, purpose))
        held = _hold_out_units(labels, units, fraction)
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


def _bits(keys: np.ndarray, purpose: int) -> np.ndarray:
    return keys.reshape(-1, 4, 8)[:, purpose].copy().view(">u8")[:, 0].astype(np.uint64)


def _first_by_rank(
    labels: np.ndarray, keys: np.ndarray, fraction: float, purpose: int, *, spare: int = 0
) -> np.ndarray:
    """Return whether each input is in the first `fraction` of its class, bool `(N,)`."""
    # At least one of each class is chosen, unless `spare` contents must be left over. A content in several
    # classes is ranked in the first of them.
    contents, copy_of = np.unique(_bits(keys, purpose), return_inverse=True)  # ascending
    classes = int(labels.max(initial=-1)) + 1
    kinds = np.full(len(contents), classes)
    np.minimum.at(kinds, copy_of, labels)
    counts = np.bincount(kinds, minlength=classes)
    counts_to_choose = np.clip(np.floor(fraction * counts + 0.5), 1, np.maximum(counts - spare, 0))
    order = kinds.argsort(kind="stable")
    ranks = np.empty(len(contents), np.int64)
    ranks[order] = np.arange(len(contents)) - (counts.cumsum() - counts)[kinds[order]]
    values: np.ndarray = (ranks < counts_to_choose[kinds])[copy_of]
    return values


def _assign_units(inputs: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Number the units that are held out as a whole, int64 `(N,)`: groups, joined if they share a copy."""
    # `inputs` and `groups` are uint64 `(N,)`: equal numbers for copies, and for members of a group. Units are
    # ranked by their smallest number in `groups`.
    ranks, previous = groups, np.empty(0, np.uint64)
    while not np.array_equal(ranks, previous):
        previous = ranks
        for numbers_of in (inputs, groups):
            values, index = np.unique(numbers_of, return_inverse=True)
            least = np.full(len(values), np.iinfo(np.uint64).max, np.uint64)
            np.minimum.at(least, index, ranks)
            ranks = least[index]
    return np.unique(ranks, return_inverse=True)[1]


def _hold_out_units(labels: np.ndarray, units: np.ndarray, fraction: float) -> np.ndarray:
    """Return whether each input is held out, bool `(N,)`, by whole units in order of their numbers."""
    # A unit is held out if this brings the counts of its classes nearer to `fraction` of each, in least
    # squares. Then a class with nothing held out gives its smallest unit. No class gives all its inputs.
    classes = int(labels.max()) + 1
    inside: dict[int, list[tuple[int, int]]] = {}  # the classes of each unit, with their numbers of inputs
    pairs, counts = np.unique(units * classes + labels, return_counts=True)
    for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
        inside.setdefault(pair // classes, []).append((pair % classes, count))
    totals = np.bincount(labels, minlength=classes).tolist()
    held, chosen = [0] * classes, set[int]()

    def is_spare(unit: int) -> bool:
        return unit not in chosen and all(held[c] + n < totals[c] for c, n in inside[unit])

    def choose(unit: int) -> None:
        chosen.add(unit)
        for c, n in inside[unit]:
            held[c] += n

    for unit, members in inside.items():
        if sum(n * (2 * (fraction * totals[c] - held[c]) - n) for c, n in members) >= 0 and is_spare(unit):
            choose(unit)
    for label in range(classes):
        if not held[label]:
            candidates = [
                unit for unit, members in inside.items() if label in dict(members) and is_spare(unit)
            ]
            for unit in sorted(candidates, key=lambda unit: sum(n for _, n in inside[unit]))[:1]:
                choose(unit)
    return np.isin(units, list(chosen))


def count_crossing(groups: Mapping[str, Iterable[str | None]], noun: str) -> Tally:
    """Count the groups, called `noun`, that are in several splits."""
    counts = Counter(group for split in groups.values() for group in {*split} - {None})
    tally = Tally()
    tally.keep(
        f"{noun}s that are in several splits, so that scores may be too high (assign each to one split)",
        sorted(group for group, count in counts.items() if group and count > 1),
    )
    return tally

"""Groups of similar inputs, such as the images of a patient or the frames of a scene.

A group is in one split. A folder assigns groups in `labels.csv`, with the columns `file` and `group`, in
every layout. Data in a table have a column `group`. An input without a group stands alone.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from automl.base.errors import InputError
from automl.data.csv_table import Table, read_table
from automl.data.files import find_on_disk, is_file, normalise_nfc
from automl.data.tally import Tally

LABELS = "labels.csv"
COLUMNS = {
    "file": ("file", "filename", "file_name", "image", "path"),
    "label": ("label", "class", "category"),
    "split": ("split", "set"),
    "group": ("group",),
}


def read_labels(root: Path) -> Table | None:
    """Read `labels.csv` in `root`, with its columns renamed to those of COLUMNS; None if there is none."""
    table = root / LABELS
    if not table.is_file():
        return None
    content = read_table(table)
    originals = {name.strip().lower(): name for name in content.columns}
    known = {column: next((n for n in names if n in originals), None) for column, names in COLUMNS.items()}
    columns = {originals[name]: column for column, name in known.items() if name is not None}
    rows = [(line, {column: row[name] for name, column in columns.items()}) for line, row in content.rows]
    return Table(columns=[columns.get(name, lower) for lower, name in originals.items()], rows=rows)


def resolve_file(root: Path, name: str, line: int) -> Path:
    """Return the file in `root` that a line of its table names. Raises InputError if it does not exist."""
    table, file = root / LABELS, find_on_disk(root, name)
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise InputError(f"{table}, line {line}: {name} must be in the folder of the table")
    if not is_file(file):
        raise InputError(f"{table}, line {line}: there is no file {file}")
    return file


def read_groups(root: Path, table: Table | None) -> dict[Path, str]:
    """Return the group of each file in `root` that has one, from the table of `read_labels`.

    Raises InputError for a missing file, and for a file in two groups.
    """
    groups: dict[Path, str] = {}
    for line, row in table.rows if table and {"file", "group"} <= {*table.columns} else ():
        file, group = resolve_file(root, row["file"], line), normalise_nfc(row["group"].strip())
        if group and groups.setdefault(file, group) != group:
            raise InputError(
                f"{root / LABELS}, line {line}: {row['file']} has the groups {groups[file]!r} and {group!r}; "
                f"keep one"
            )
    return groups


def assign_units(inputs: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Number the units that are held out as a whole, int64 `(N,)`: groups, joined if they share a copy.

    `inputs` and `groups` are uint64 `(N,)`: equal numbers for copies, and for members of a group. Units are
    ranked by their smallest number in `groups`.
    """
    ranks, previous = groups, np.empty(0, np.uint64)
    while not np.array_equal(ranks, previous):
        previous = ranks
        for numbers_of in (inputs, groups):
            values, index = np.unique(numbers_of, return_inverse=True)
            least = np.full(len(values), np.iinfo(np.uint64).max, np.uint64)
            np.minimum.at(least, index, ranks)
            ranks = least[index]
    units: np.ndarray = np.unique(ranks, return_inverse=True)[1]
    return units


def hold_out_units(labels: np.ndarray, units: np.ndarray, fraction: float) -> np.ndarray:
    """Return whether each input is held out, bool `(N,)`, by whole units in order of their numbers.

    A unit is held out if this brings the counts of its classes nearer to `fraction` of each, in least
    squares. Then a class with nothing held out gives its smallest unit. No class gives all its inputs.
    """
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

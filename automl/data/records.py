"""The inputs of a dataset by number, and which of them are in which split."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import numpy as np

from attention.errors import InputError
from automl.data.arrow import ArrowFile
from automl.data.groups import count_crossing
from automl.data.manifest import Manifest
from automl.data.splits import FRACTION, SPLITS, hold_out_split, select_subset, single_class
from automl.data.tally import Tally


class Inputs(Protocol):
    """N inputs, decoded or not.

    names, groups: of each; a group is empty or None where an input stands alone. split: integers (N,), an
    index of SPLITS, -1 where the dataset gives none. keys, contents: uint8 (N, 32), hashes of what decides on
    splits, and of all that is learned from. archive, tally: as of a `Listing`.
    """

    @property
    def names(self) -> Sequence[str]: ...
    @property
    def groups(self) -> Sequence[str | None]: ...
    @property
    def split(self) -> np.ndarray: ...
    @property
    def keys(self) -> np.ndarray: ...
    @property
    def contents(self) -> np.ndarray: ...
    @property
    def archive(self) -> str | None: ...
    @property
    def tally(self) -> Tally: ...


class RecordFile(ArrowFile):
    """An opened file of N inputs, those of all splits.

    Its columns are those of its kind and name, content (the SHA-256 of each input), split (int8, as of
    `Inputs`) and group (string, null where an input stands alone; left out where all do).
    """

    archive = None

    def __init__(self, path: Path, key: str = "content") -> None:
        super().__init__(path)
        self.keys = self.contents = self.read_hashes(key)
        self.split: np.ndarray = self.table["split"].to_numpy()

    @cached_property
    def groups(self) -> list[str | None]:
        if "group" not in self.table.column_names:
            return [None] * len(self.table)
        groups: list[str | None] = self.table["group"].to_pylist()
        return groups

    @cached_property
    def tally(self) -> Tally:
        """What was turned, rescaled or is double, of a kind that has the column `changes`."""
        tally = Tally()
        if "changes" in self.table.column_names:
            copies = zip(self.names, map(bytes, self.keys), strict=True)
            tally.keep_copies("copies of another input", copies)
            tally += self.count_changes()
        return tally


File = TypeVar("File", bound=Inputs)


class Records(Generic[File]):
    """The inputs of a file or listing by number, and the numbers of each split.

    A split that the dataset does not give is carved from another one: by the content of each input, or by
    its group, so that members of a group are in one split.

    subset: about the share of the inputs of "train" and "validation" that is used.

    Raises InputError where no split can be carved.
    """

    noun = "inputs"
    group_noun = "group"
    classed = False  # whether a split has its share of each class

    def __init__(self, file: File, subset: float = 1.0) -> None:
        self.file, self.subset = file, subset
        rows = {name: np.flatnonzero(file.split.clip(0) == i) for i, name in enumerate(SPLITS)}
        self.held_out: dict[str, tuple[str, float]] = {}
        for split in ("test", "validation"):
            if not len(rows[split]):
                source, share = self.choose_source(split, rows)
                rest = rows[source]
                held, kept = self.hold_out(rest, split, share)
                rows |= {split: rest[held], source: rest[kept]}
                self.held_out[split] = source, len(held) / len(rest)
        if not len(rows["train"]):
            raise InputError(f"there are no {self.noun} to train on; give some the split train")
        self.whole: Mapping[str, np.ndarray] = rows  # before it is thinned
        self._rows = {split: at if split == "test" else at[self.select(at)] for split, at in rows.items()}

    def rows(self, split: str) -> np.ndarray:
        """The numbers of the inputs of a split, int64, ascending."""
        return self._rows[split]

    def labels(self, rows: np.ndarray) -> np.ndarray:
        """Return the classes, integers from 0, of each of which a split has its share."""
        return single_class(rows)

    def class_name(self, row: int) -> str:
        """Return the name of an input's class in the manifest."""
        return ""

    def choose_source(self, split: str, rows: Mapping[str, np.ndarray]) -> tuple[str, float]:
        """Return the split that a missing one is carved from, and its share of that."""
        return "train", FRACTION

    def hold_out(self, rows: np.ndarray, split: str, share: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the indices in `rows` of a split, and those of the rest."""
        groups = [self.file.groups[row] for row in rows.tolist()]
        return hold_out_split(self.labels(rows), self.file.keys[rows], share, split, self.noun, groups)

    def select(self, rows: np.ndarray) -> np.ndarray:
        """Return the indices in `rows` of those that are used."""
        return select_subset(self.labels(rows), self.file.keys[rows], self.subset)

    @cached_property
    def _groups(self) -> Mapping[str, Sequence[str | None]]:
        """The group of each input of each split."""
        return {split: [self.file.groups[row] for row in rows.tolist()] for split, rows in self.whole.items()}

    @property
    def _grouped(self) -> bool:
        return any(map(any, self._groups.values()))

    @cached_property
    def tally(self) -> Tally:
        """What was left out or is double, groups in several splits, and classes of too few groups."""
        tally = self.file.tally + count_crossing(self._groups, self.group_noun)
        kinds = {split: {self.class_name(row) for row in rows.tolist()} for split, rows in self.whole.items()}
        for split in self.held_out if self._grouped else ():
            tally.keep(
                f"classes of too few {self.group_noun}s to be in {split}, too (add {self.group_noun}s, or "
                f"give the splits yourself)",
                sorted(kinds["train"] - kinds[split]),
            )
        return tally

    def describe_splits(self) -> dict[str, str]:
        """Describe how each split came about."""
        noun, counts = self.noun, {split: len({*names} - {None, ""}) for split, names in self._groups.items()}
        each, by = " of each class," if self.classed else "", "names" if self.file.archive else "content"
        if self._grouped:
            each, by = "", f"{self.group_noun}, which is in one split"
        words = dict.fromkeys(SPLITS, "the dataset's own")
        for split, (source, share) in self.held_out.items():
            whole = f"the {'training' if source == 'train' else source} {noun}"
            words[source] = f"{whole}, less those for {split}"
            of = f"all {noun}" if (source, split) == ("train", "test") else whole
            words[split] = f"about {share:.0%} of {of},{each} chosen by their {by}"
        for split in SPLITS:
            if self.subset < 1 and split != "test":
                words[split] = f"about {self.subset:.3g} of {'each class of ' * self.classed}{words[split]}"
            if self._grouped:
                words[split] += f"; {counts[split]} {self.group_noun}{'s' * (counts[split] != 1)}"
        return words

    def manifest(self) -> Manifest:
        """List which inputs are in which split, with a hash of each."""
        names, contents = self.file.names, self.file.contents
        splits = {
            split: [(names[row], self.class_name(row), contents[row].tobytes()) for row in rows.tolist()]
            for split, rows in self._rows.items()
        }
        return Manifest.from_splits(splits, archive=self.file.archive)

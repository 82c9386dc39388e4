"""The inputs of a dataset by number, decoded or not, and their splits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from automl.base.errors import InputError
from automl.data.manifest import Manifest
from automl.data.shared import ShardedFile
from automl.data.splits import (
    FRACTION,
    HALF,
    SPLITS,
    count_crossing,
    hash_names,
    hold_out_split,
    pack_keys,
    select_subset,
)
from automl.data.tally import Tally

TOLERANCE = 1.75  # factor by which the fraction of a split of groups may differ from that asked for


class RecordFile(ShardedFile):
    """An opened file of N inputs of all splits.

    Its columns are those of its kind and name, content (the SHA-256 of each input), split (int8) and group
    (string, null for an input that stands alone; omitted if all do).

    Attributes:
        keys: hashes that decide on splits, uint8 `(N, 32)`.
        contents: hashes of all data that are learned from, uint8 `(N, 32)`.
        split: an index of SPLITS for each input, -1 if the dataset defines none, `(N,)`.
    """

    archive: str | None = None  # as of `Listing`

    def __init__(self, path: Path, key: str = "content") -> None:
        super().__init__(path)
        self.keys = self.contents = self.read_hashes(key)
        self.split: np.ndarray = self.table["split"].to_numpy()

    @cached_property
    def groups(self) -> list[str | None]:
        if "group" not in self.table.column_names:
            return [None] * len(self.table)
        return list(self.table["group"].to_pylist())

    @cached_property
    def tally(self) -> Tally:
        """Inputs that were turned, rescaled or duplicated, for kinds with a column `changes`."""
        tally = Tally()
        if "changes" in self.table.column_names:
            copies = zip(self.names, map(bytes, self.keys), strict=True)
            tally.keep_copies("copies of another input", copies)
            tally += self.count_changes()
        return tally


File = TypeVar("File", bound="RecordFile | Listing[Any]")


class Records(Generic[File]):
    """The inputs of a file or listing by number, and the numbers of each split.

    A split that the dataset does not define is held out from another one, by the content of each input or by
    whole groups.

    Raises InputError if no split can be held out.

    Attributes:
        subset: the approximate fraction of the inputs of "train" and "validation" that is used.
        held_out: for each split that was held out, the split it came from and the fraction.
        whole: the inputs of each split before `subset` is applied.
    """

    noun = "inputs"
    group_noun = "group"
    stratum = ""  # of which the same fraction each is held out

    def __init__(self, file: File, subset: float = 1.0) -> None:
        self.file, self.subset = file, subset
        rows = {name: np.flatnonzero(file.split.clip(0) == i) for i, name in enumerate(SPLITS)}
        self.held_out: dict[str, tuple[str, float]] = {}
        self._targets: dict[str, float] = {}  # fraction of each split that was asked for
        for split in ("test", "validation"):
            if not len(rows[split]):
                source, fraction = self.choose_source(split, rows)
                rest = rows[source]
                held, kept = self.hold_out(rest, split, fraction)
                self._targets[split] = fraction
                rows |= {split: rest[held], source: rest[kept]}
                self.held_out[split] = source, len(held) / len(rest)
        if not len(rows["train"]):
            raise InputError(f"there are no {self.noun} to train on; give some the split train")
        self.whole: Mapping[str, np.ndarray] = rows
        self._rows = {
            split: numbers if split == "test" else numbers[self.select(numbers)]
            for split, numbers in rows.items()
        }

    def rows(self, split: str) -> np.ndarray:
        """Return the numbers of the inputs of a split, int64, ascending."""
        return self._rows[split]

    def labels(self, rows: np.ndarray) -> np.ndarray:
        """Return the classes of inputs, integers from 0. The same fraction of each class is held out."""
        return np.zeros(len(rows), np.int64)

    def class_name(self, row: int) -> str:
        """Return the name of an input's class for the manifest."""
        return ""

    def stratum_name(self, row: int) -> str:
        """Return the name of what the same fraction is held out of."""
        return self.class_name(row)

    def choose_source(self, split: str, rows: Mapping[str, np.ndarray]) -> tuple[str, float]:
        """Return the split that a missing one is held out from, and the fraction."""
        return "train", FRACTION

    def hold_out(self, rows: np.ndarray, split: str, fraction: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the indices in `rows` of a split, and those of the rest."""
        groups = [self.file.groups[row] for row in rows.tolist()]
        return hold_out_split(self.labels(rows), self.file.keys[rows], fraction, split, self.noun, groups)

    def select(self, rows: np.ndarray) -> np.ndarray:
        """Return the indices in `rows` of the inputs that are used."""
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
        """Inputs left out or duplicated, groups in several splits, and classes of too few groups."""
        tally = self.file.tally + count_crossing(self._groups, self.group_noun)
        classes = {
            split: {self.stratum_name(row) for row in rows.tolist()} for split, rows in self.whole.items()
        }
        for split in self.held_out if self._grouped else ():
            tally.keep(
                f"classes with too few {self.group_noun}s to be in {split} (add {self.group_noun}s, or "
                f"define the splits yourself)",
                sorted(classes["train"] - classes[split]),
            )
            fraction, target = self.held_out[split][1], self._targets[split]
            advice = f"add {self.group_noun}s, or define the splits yourself"
            names = sorted({name or "" for name in self._groups[split]})
            if len(names) == 1 and names[0]:
                tally.keep(
                    f"{self.group_noun}s alone in {split}, so that all scores are of it ({advice})", names
                )
            elif not target / TOLERANCE <= fraction <= target * TOLERANCE:
                tally.keep(
                    f"{self.group_noun}s in {split} with {fraction:.0%} of the {self.noun} instead of "
                    f"{target:.0%} ({advice})",
                    filter(None, names),
                )
        return tally

    def describe_splits(self) -> dict[str, str]:
        """Return a phrase for each split that says how it was made."""
        noun, counts = self.noun, {split: len({*names} - {None, ""}) for split, names in self._groups.items()}
        by_class = f" of each {self.stratum}," if self.stratum else ""
        by = "names" if self.file.archive else "content"
        if self._grouped:
            by_class, by = "", f"{self.group_noun}, which is in one split"
        texts = dict.fromkeys(SPLITS, "the dataset's own")
        for split, (source, fraction) in self.held_out.items():
            whole = f"the {'training' if source == 'train' else source} {noun}"
            texts[source] = f"{whole}, less those for {split}"
            base = f"all {noun}" if (source, split) == ("train", "test") else whole
            texts[split] = f"about {fraction:.0%} of {base},{by_class} chosen by their {by}"
        for split in SPLITS:
            if self.subset < 1 and split != "test":
                each = f"each {self.stratum} of " if self.stratum else ""
                texts[split] = f"about {self.subset:.3g} of {each}{texts[split]}"
            if self._grouped:
                texts[split] += f"; {counts[split]} {self.group_noun}{'s' * (counts[split] != 1)}"
        return texts

    def manifest(self) -> Manifest:
        """Return the list of the inputs of each split with their hashes."""
        names, contents = self.file.names, self.file.contents
        splits = {
            split: [(names[row], self.class_name(row), contents[row].tobytes()) for row in rows.tolist()]
            for split, rows in self._rows.items()
        }
        return Manifest.from_splits(splits, archive=self.file.archive)


@dataclass(frozen=True)
class Item:
    """An image: a file that is not decoded yet, or a uint8 array `(H, W)` or `(H, W, 3)`.

    Attributes:
        content: the SHA-256 of all data that are learned from.
        group: empty if the image stands alone.
        key: the hash that decides on splits; empty if it is `content`.
        values: the value of each output to learn, if that is not the label. Then the label is a stratum.
        shown: these as text.
    """

    name: str
    image: Path | np.ndarray
    label: int
    content: bytes
    group: str = ""
    key: bytes = b""
    values: tuple[float, ...] = ()
    shown: str = ""


ItemType = TypeVar("ItemType", bound=Item)


@dataclass(frozen=True, kw_only=True)
class Listing(Generic[ItemType]):
    """The inputs of a dataset by its own splits: "train", and optionally "validation" and "test".

    Building it hashes files and decodes none, so a search never reads the images of the test split.

    Attributes:
        classes: names of the labels, or of the outputs of a model if `target` is no class.
        target: the kind of what is learned of an input.
        archive: the downloaded archive, whose inputs are identified by name; None if there is none.
        tally: inputs that were left out or duplicated.
    """

    splits: Mapping[str, Sequence[ItemType]]
    classes: tuple[str, ...] = ("",)
    archive: str | None = None
    target: str = "classes"
    tally: Tally = field(default_factory=Tally)

    @cached_property
    def inputs(self) -> list[ItemType]:
        return [item for split in SPLITS for item in self.splits.get(split, ())]

    @cached_property
    def split(self) -> np.ndarray:
        return np.repeat(range(len(SPLITS)), [len(self.splits.get(split, ())) for split in SPLITS])

    @cached_property
    def names(self) -> list[str]:
        return [item.name for item in self.inputs]

    @cached_property
    def groups(self) -> list[str]:
        return [item.group for item in self.inputs]

    @cached_property
    def labels(self) -> np.ndarray:
        return np.array([item.label for item in self.inputs], np.int64)

    @cached_property
    def keys(self) -> np.ndarray:
        return (
            hash_names(self.names)
            if self.archive
            else pack_keys(item.key or item.content for item in self.inputs)
        )

    @cached_property
    def contents(self) -> np.ndarray:
        return pack_keys(item.content for item in self.inputs)


ListingType = TypeVar("ListingType", bound=Listing[Any])


class ImageRecords(Records[ListingType]):
    """The images of a listing. Half of its own validation images are the test split if it has none."""

    noun = "images"

    def __init__(self, file: ListingType, subset: float = 1.0, stratum: str = "class") -> None:
        super().__init__(file, subset)
        self.stratum = stratum if len(file.classes) > 1 else ""

    def labels(self, rows: np.ndarray) -> np.ndarray:
        values: np.ndarray = self.file.labels[rows]
        return values

    def class_name(self, row: int) -> str:
        shown: str = self.file.inputs[row].shown
        return shown or self.stratum_name(row)

    def stratum_name(self, row: int) -> str:
        return str(self.file.classes[self.file.labels[row]])

    def choose_source(self, split: str, rows: Mapping[str, np.ndarray]) -> tuple[str, float]:
        if split == "test" and len(rows["validation"]):
            return "validation", HALF
        return super().choose_source(split, rows)

    def inputs(self, split: str) -> list[Any]:
        """Return the images of a whole split."""
        return [self.file.inputs[row] for row in self.whole[split]]

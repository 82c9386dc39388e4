"""The inputs of a dataset that are all in one file, and which of them are in which split."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from attention.errors import InputError
from automl.data.arrow import ArrowFile
from automl.data.manifest import Manifest
from automl.data.splits import SHARE, SPLITS, carve, carved_words, describe, keys_of, one_class, thinned


class RecordFile(ArrowFile):
    """An opened file of N inputs. `split` int8 (N,), `keys` uint8 (N, 32).

    Its columns are those of its kind and name, content (the SHA-256 of each input), split (int8, an index of
    SPLITS, -1 where the dataset gives none) and group (string, null where an input stands alone).
    """

    def __init__(self, path: Path, key: str = "content") -> None:
        super().__init__(path)
        self.keys = self.hashes(key)
        self.split: np.ndarray = self.table["split"].to_numpy()

    @cached_property
    def groups(self) -> list[str | None]:
        groups: list[str | None] = self.table["group"].to_pylist()
        return groups


File = TypeVar("File", bound=RecordFile)


class Records(Generic[File]):
    """The inputs of a file by number, and the numbers of each split.

    A split that the dataset does not give is carved from the training inputs: by the content of each, or by
    its group, so that members of a group are in one split.

    subset: about the share of the inputs of "train" and "validation" that is used.

    Raises InputError where no split can be carved.
    """

    noun = "inputs"
    each = ""  # in words, of what a subset has its share

    def __init__(self, file: File, subset: float = 1.0) -> None:
        self.file, self.subset = file, subset
        rows = {name: np.flatnonzero(file.split.clip(0) == i) for i, name in enumerate(SPLITS)}
        self.carved = [split for split in ("test", "validation") if not len(rows[split])]
        for split in self.carved:
            rest = rows["train"]
            held, kept = self.carve(rest, split)
            rows |= {split: rest[held], "train": rest[kept]}
        if not len(rows["train"]):
            raise InputError(f"there are no {self.noun} to train on; give some the split train")
        self.whole: Mapping[str, np.ndarray] = rows  # before it is thinned
        self._rows = {split: at if split == "test" else at[self.thin(at)] for split, at in rows.items()}

    def rows(self, split: str) -> np.ndarray:
        """The numbers of the inputs of a split, int64, ascending."""
        return self._rows[split]

    def labels(self, rows: np.ndarray) -> np.ndarray:
        """Return the classes, integers from 0, of each of which a split has its share."""
        return one_class(rows)

    def kind(self, row: int) -> str:
        """Return the name of an input's class in the manifest."""
        return ""

    def carve(self, rows: np.ndarray, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the indices in `rows` of a split, and those of the rest."""
        try:
            return carve(self.labels(rows), self._group_keys[rows], SHARE, split)
        except InputError:
            raise InputError(
                f"a {split} split needs two different {self.noun} or groups or more; got {len(rows)} "
                f"{self.noun}; add {self.noun}, or give the splits yourself"
            ) from None

    def thin(self, rows: np.ndarray) -> np.ndarray:
        """Return the indices in `rows` of those that are used."""
        return thinned(self.labels(rows), self.file.keys[rows], self.subset)

    @cached_property
    def _group_keys(self) -> np.ndarray:
        known = np.array([group is not None for group in self.file.groups])
        return np.where(known[:, None], keys_of(group or "" for group in self.file.groups), self.file.keys)

    def carved_words(self, split: str) -> str:
        """Describe a split that was carved."""
        grouped = any(group is not None for group in self.file.groups)
        return carved_words(split, self.noun, "group, which is in one split" if grouped else "content")

    def describe_splits(self) -> dict[str, str]:
        """Describe how each split came about."""
        words = {split: self.carved_words(split) for split in self.carved}
        return describe(words, self.noun, self.subset, self.each)

    def manifest(self) -> Manifest:
        """List which inputs are in which split, with a hash of each."""
        names, keys = self.file.names, self.file.keys
        return Manifest.of(
            {
                split: [(names[row], self.kind(row), keys[row].tobytes()) for row in rows.tolist()]
                for split, rows in self._rows.items()
            }
        )

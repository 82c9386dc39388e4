"""The inputs of a dataset of files before decoding: names, classes, hashes and groups."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from automl.data.records import Records
from automl.data.splits import HALF, SPLITS, hash_names, pack_keys
from automl.data.tally import Tally


@dataclass(frozen=True)
class Item:
    """An image: a file that is not decoded yet, or a uint8 array `(H, W)` or `(H, W, 3)`.

    Attributes:
        content: the SHA-256 of all data that are learned from.
        group: empty if the image stands alone.
        key: the hash that decides on splits; empty if it is `content`.
    """

    name: str
    image: Path | np.ndarray
    label: int
    content: bytes
    group: str = ""
    key: bytes = b""


ItemType = TypeVar("ItemType", bound=Item)


@dataclass(frozen=True, kw_only=True)
class Listing(Generic[ItemType]):
    """The inputs of a dataset by its own splits: "train", and optionally "validation" and "test".

    Building it hashes files and decodes none, so a search never reads the images of the test split.

    Attributes:
        classes: names of the labels.
        archive: the downloaded archive, whose inputs are identified by name; None if there is none.
        tally: inputs that were left out or duplicated.
    """

    splits: Mapping[str, Sequence[ItemType]]
    classes: tuple[str, ...] = ("",)
    archive: str | None = None
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
    """The images of a listing by number, and the numbers of each split.

    Without a test split, half of the dataset's own validation images form it.
    """

    noun = "images"

    def __init__(self, file: ListingType, subset: float = 1.0) -> None:
        super().__init__(file, subset)
        self.classed = len(file.classes) > 1

    def labels(self, rows: np.ndarray) -> np.ndarray:
        labels: np.ndarray = self.file.labels[rows]
        return labels

    def class_name(self, row: int) -> str:
        name: str = self.file.classes[self.file.labels[row]]
        return name

    def choose_source(self, split: str, rows: Mapping[str, np.ndarray]) -> tuple[str, float]:
        if split == "test" and len(rows["validation"]):
            return "validation", HALF
        return super().choose_source(split, rows)

    def inputs(self, split: str) -> list[Any]:
        """Return the images of a whole split."""
        return [self.file.inputs[row] for row in self.whole[split]]

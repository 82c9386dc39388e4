"""What a dataset consists of before anything is decoded: names and labels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from automl.data.tally import Tally


class Item(NamedTuple):
    """One image: a file that is not decoded yet, or a uint8 array (height, width) or (height, width, 3).

    content: the SHA-256 of the file's bytes, or of the array's.
    """

    name: str
    image: Path | np.ndarray
    label: int
    content: bytes


@dataclass(frozen=True, kw_only=True)
class Items:
    """The images of a dataset by split: "train", "test", and "validation" where it brings its own.

    Making it hashes files and decodes none, so a search never looks at what lies in the test split.
    carved: the dataset has no test split of its own; it was set aside from the training images.
    tally: what was left out, and what is double.
    """

    classes: tuple[str, ...]
    splits: Mapping[str, Sequence[Item]]
    carved: bool = False
    tally: Tally = field(default_factory=Tally)

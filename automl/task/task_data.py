"""The data of a task: sizes and classes of its splits, their manifest, and their files in a storage."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from automl.base.errors import InputError
from automl.base.escape import printable
from automl.data.manifest import Manifest
from search.config import TrialConfig
from search.metric import Chance, Metric

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
SHOWN = 10  # largest number of class names in a description


@dataclass(frozen=True, kw_only=True)
class ShownInputs:
    """Inputs of a model, and pictures of them.

    Attributes:
        pictures: Images uint8 `(H, W, 3)`; signals `(C, T)` without padding; or lists of tokens.
        names: A name for each input, such as its class.
        padded: Number of steps or tokens with padding.
    """

    inputs: Any
    pictures: Sequence[NDArray[np.generic] | list[str]]
    names: Sequence[str]
    padded: int = 1


class TaskData(ABC):
    """The part of a `Task` about its data."""

    noun: str = "inputs"
    metric: Metric

    @abstractmethod
    def size(self, split: Split) -> int:
        """Return the number of inputs of a split.

        Args:
            split: The split.

        Returns:
            The number.
        """

    def class_counts(self, split: Split) -> Sequence[int]:
        """Return the number of inputs of each class in a split.

        Args:
            split: The split.

        Returns:
            The numbers in the order of `labels`; empty for a task without classes.
        """
        return ()

    def chance(self, split: Split) -> Chance | None:
        """Return the score of guessing in the primary metric, or None if it is unknown.

        Args:
            split: The split.

        Returns:
            The score.
        """
        training = zip(self.class_counts("train"), self.class_counts("validation"), strict=True)
        return self.metric.chance(self.class_counts(split), [sum(counts) for counts in training])

    @classmethod
    @abstractmethod
    def manifest(cls, config: TrialConfig) -> Manifest:
        """Return the list of the inputs of each split, with a hash of each, as they are now.

        Args:
            config: The configuration.

        Returns:
            The manifest.
        """

    @classmethod
    def shared_name(cls, config: TrialConfig) -> str | None:
        """Return the name of the dataset in a storage, or None if each machine loads the data itself.

        Args:
            config: The configuration.

        Returns:
            The name.
        """
        return None

    def stored_files(self, splits: Sequence[Split]) -> Mapping[str, Path]:
        """Return the cache file of each split. Required for a task with a `shared_name`.

        Args:
            splits: The splits. Files of further splits may be returned, too.

        Returns:
            The path of the file for each split.
        """
        raise InputError(f"{type(self).__name__} has a `shared_name` and needs `stored_files`")

    @property
    def labels(self) -> list[str]:
        """Return the names of the classes; empty for a task without classes."""
        return []

    def describe_data(self) -> str:
        """Return a line that describes the training data. The test split is not read."""
        train, validation = self.size("train"), self.size("validation")
        text = f"{train:,} {self.noun} to train on and {validation:,} for validation"
        if not self.labels:
            return text
        more = ", ..." if len(self.labels) > SHOWN else ""
        return f"{text}; {len(self.labels)} classes: {', '.join(map(printable, self.labels[:SHOWN]))}{more}"

    def describe_changes(self) -> str:
        """Return a line on inputs that were left out, changed or duplicated, or an empty string."""
        return ""

    def describe_splits(self) -> dict[str, str]:
        """Return a description of how each split was made."""
        return {}

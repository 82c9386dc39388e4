"""The overview of a dataset by its task."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch

from automl.base.lazy import resolve
from automl.config.nouns import Question
from automl.config.runtime import Runtime
from automl.data.splits import SPLITS
from automl.task.opening import open_task, task_of_data
from search.config import TrialConfig
from search.config.tasks import find_spec


@dataclass(frozen=True, kw_only=True)
class SplitsOverview:
    """Overview of the dataset of a task that defines none.

    Attributes:
        data: The dataset in one line.
        counts: Number of inputs by class and split.
        how: Origin of each split.
        changes: Inputs left out, rotated or rescaled, in one line.
    """

    data: str
    counts: Mapping[str, Mapping[str, int]]
    how: Mapping[str, str]
    changes: str

    def lines(self) -> Iterator[str]:
        """Yield the lines that the command prints."""
        width = max(11, *(len(name) + 1 for name in self.counts))
        yield f"{'':{width}}" + "".join(f"{split:>12}" for split in SPLITS)
        for name, counts in self.counts.items():
            yield f"{name:{width}}" + "".join(f"{counts[split]:>12}" for split in SPLITS)
        for split, how in self.how.items():
            yield f"{split:{width}} {how}"
        yield f"{'data':{width}} {self.data}"
        if self.changes:
            yield self.changes


def describe_data(path: str, *, space: str | None = None, size: int = 128) -> Any:
    """Describe a dataset: its inputs by class and split, and problems.

    Args:
        path: The folder or archive: images by class or in COCO's layout, code, stereo pairs, or sequences.
        space: The space of a search, whose task reads the data. By default the data decide.
        size: The side of the images in pixels.

    Returns:
        An overview of that kind of data. Its `lines()` are what `automl data` prints.

    Raises:
        InputError: The data cannot be read, or the size is invalid.

    Example:
        >>> import automl
        >>> from pathlib import Path
        >>> from PIL import Image
        >>> for green, name in enumerate(("cat", "dog")):
        ...     Path("photos", name).mkdir(parents=True)
        ...     for red in range(20):
        ...         Image.new("RGB", (32, 32), (12 * red, 99 * green, 0)).save(f"photos/{name}/{red}.png")
        >>> overview = automl.describe_data("photos", size=32)
        >>> sorted(overview.counts)
        ['cat', 'dog']
    """
    spec = (task_of_data(path) or find_spec(TrialConfig.task)) if space is None else None
    config = None
    if spec is None or not spec.overview:
        config = Question(space=space or (spec.space if spec else ""), data=str(path)).open().baseline
        spec = find_spec(config.task)
    if not spec.overview:
        assert config is not None
        return _look_over_splits(config)
    overview = resolve(spec.overview)
    return overview(path, size=size) if "size" in signature(overview).parameters else overview(path)


def _look_over_splits(config: TrialConfig) -> SplitsOverview:
    task = open_task(config, Runtime(device=torch.device("cpu")))
    kinds = Counter((row[2] or task.noun, row[0]) for row in task.manifest(task.config).rows())
    names = dict.fromkeys(name for name, _ in kinds)
    return SplitsOverview(
        data=task.describe_data(),
        counts={name: {split: kinds[name, split] for split in SPLITS} for name in names},
        how=task.describe_splits(),
        changes=task.describe_changes(),
    )

"""Read sequences to predict: the formats of training data, without labels."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from automl.base.errors import InputError
from automl.tasks.sequence_classification.data.formats import FORMATS


def read_unlabelled(path: str | Path, channels: Sequence[str]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name and the values, float32 `(C, T)`, of each sequence in a file. Missing values are NaN.

    `channels` are those of the model. A file that names its channels may have them in any order.

    Raises InputError for a file that cannot be read, and for other channels.
    """
    path = Path(path)
    readers = {
        file_format.suffix: file_format.read_series
        for file_format in FORMATS.values()
        if file_format.suffix and file_format.read_series
    }
    if (read := readers.get(path.suffix.lower())) is None:
        raise InputError(f"{path} must be a file of sequences: {', '.join(readers)}")
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    names, series = read(path, len(channels))
    if names is not None and sorted(names) != sorted(channels):
        raise InputError(
            f"{path} has the channels {', '.join(names)}; the model was trained on {', '.join(channels)}"
        )
    order = None if names is None else [names.index(channel) for channel in channels]
    for name, values in series:
        if len(values) != len(channels):
            raise InputError(
                f"{path}: {name} has {len(values)} channels; the model was trained on {len(channels)}"
            )
        if np.isinf(values).any():
            raise InputError(f"{path}: {name} must be finite and fit into 32 bits; one value is infinite")
        yield f"{path}: {name}", values if order is None else values[order]

"""Sequences to predict: the formats of training data, without labels."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from attention.errors import InputError
from automl.data.sequences.sequence_formats import FORMATS


def read_unlabelled(path: str | Path, channels: Sequence[str]) -> Iterator[tuple[str, np.ndarray]]:
    """Each sequence in a file: what it is called, and its values, float32 (C, T), NaN where one is missing.

    channels: those that a model was trained on. A file that names its own has them in any order.

    Raises InputError for a file that cannot be read, and for other channels.
    """
    path = Path(path)
    readers = {form.suffix: form.read_series for form in FORMATS.values() if form.suffix and form.read_series}
    if (read := readers.get(path.suffix.lower())) is None:
        raise InputError(f"{path} must be a file of sequences: {', '.join(readers)}")
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    names, found = read(path, len(channels))
    if names is not None and sorted(names) != sorted(channels):
        raise InputError(
            f"{path} has the channels {', '.join(names)}; the model was trained on {', '.join(channels)}"
        )
    order = None if names is None else [names.index(channel) for channel in channels]
    for name, values in found:
        if len(values) != len(channels):
            raise InputError(
                f"{path}: {name} has {len(values)} channels; the model was trained on {len(channels)}"
            )
        if np.isinf(values).any():
            raise InputError(f"{path}: {name} must be finite and fit into 32 bits; one value is infinite")
        yield f"{path}: {name}", values if order is None else values[order]

"""The formats in which sequences are read: one table."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from automl.data.sequences import long_csv, npz, ts, ucihar
from automl.data.sequences.recording import Recording

Series = tuple[list[str] | None, list[tuple[str, np.ndarray]]]


@dataclass(frozen=True, kw_only=True)
class Format:
    """A file format of sequences.

    find_files: the files of a dataset that a path names, None where it names none. read: what is in them.
    suffix: of a file of sequences to predict, and read_series: the names of its channels, if it has any, and
        each sequence, without a label; None for a format of datasets alone. Its second argument is how many
        channels the model takes, which can tell an axis of channels from one of steps.
    """

    name: str
    about: str
    find_files: Callable[[Path], tuple[Path, ...] | None]
    read_recording: Callable[[Sequence[Path]], Recording]
    suffix: str | None = None
    read_series: Callable[[Path, int], Series] | None = None


FORMATS: dict[str, Format] = {
    form.name: form
    for form in (
        Format(
            name="ucihar",
            about="the folder 'UCI HAR Dataset' or a zip of it",
            find_files=ucihar.find_files,
            read_recording=ucihar.read_recording,
        ),
        Format(
            name="ts",
            about="NAME for NAME_TRAIN.ts and NAME_TEST.ts",
            find_files=ts.find_files,
            read_recording=ts.read_recording,
            suffix=ts.SUFFIX,
            read_series=ts.read_series,
        ),
        Format(
            name="csv",
            about="a .csv file with a row for each step",
            find_files=long_csv.find_files,
            read_recording=long_csv.read_recording,
            suffix=long_csv.SUFFIX,
            read_series=long_csv.read_series,
        ),
        Format(
            name="npz",
            about="an .npz file with x_train (sequences, channels, steps) and y_train",
            find_files=npz.find_files,
            read_recording=npz.read_recording,
            suffix=npz.SUFFIX,
            read_series=npz.read_series,
        ),
    )
}

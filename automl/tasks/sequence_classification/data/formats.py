"""The table of the file formats of sequences."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from automl.tasks.sequence_classification.data import long_csv, npz, ts, ucihar
from automl.tasks.sequence_classification.data.recording import Recording

Series = tuple[list[str] | None, list[tuple[str, np.ndarray]]]


@dataclass(frozen=True, kw_only=True)
class Format:
    """A file format of sequences.

    Attributes:
        find_files: returns the files of the dataset at a path; None if there is none.
        read_recording: reads these files.
        suffix: the suffix of a file of sequences to predict; None if the format is only for datasets.
        read_series: returns the names of the channels of such a file, if it has any, and each sequence. Its
            second argument is the number of channels of the model, which helps to identify the axis of
            channels.
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

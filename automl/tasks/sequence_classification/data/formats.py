"""The sources and file formats of sequences: open a dataset, and read sequences to predict."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from automl.base.errors import InputError, unknown
from automl.data import shared
from automl.data.archive import extract_if_archive
from automl.data.download import fetch_files
from automl.data.files import is_clutter, list_folders
from automl.data.remote import local_copy
from automl.tasks.sequence_classification.data import long_csv, npz, ts, ucihar
from automl.tasks.sequence_classification.data.reading import Recording, SequenceCache, open_sequence_cache

SUFFIXES = (".csv", ".tsv", ".npz", ".npy", ".ts", ".arff")
Series = tuple[list[str] | None, list[tuple[str, np.ndarray]]]


@dataclass(frozen=True, kw_only=True)
class Format:
    """A file format of sequences.

    Attributes:
        read_recording: reads the files of a dataset.
        find: returns these files by the dataset's path; None if there are none. By default a dataset is one
            file with the suffix.
        suffix: the suffix of a file of sequences to predict; None if the format is only for datasets.
        read_series: returns the names of the channels of such a file, if it has any, and each sequence. Its
            second argument is the number of channels of the model, which helps to identify the axis of
            channels.
    """

    name: str
    about: str
    read_recording: Callable[[Sequence[Path]], Recording]
    find: Callable[[Path], tuple[Path, ...] | None] | None = None
    suffix: str | None = None
    read_series: Callable[[Path, int], Series] | None = None

    def find_files(self, path: Path) -> tuple[Path, ...] | None:
        """Return the files of the dataset at a path; None if there is none."""
        if self.find is not None:
            return self.find(path)
        return (path,) if path.suffix.lower() == self.suffix and path.is_file() else None


FORMATS: dict[str, Format] = {
    form.name: form
    for form in (
        Format(
            name="ucihar",
            about="the folder 'UCI HAR Dataset' or a zip of it",
            read_recording=ucihar.read_recording,
            find=ucihar.find_files,
        ),
        Format(
            name="ts",
            about="NAME for NAME_TRAIN.ts and NAME_TEST.ts",
            read_recording=ts.read_recording,
            find=ts.find_files,
            suffix=ts.SUFFIX,
            read_series=ts.read_series,
        ),
        Format(
            name="csv",
            about="a .csv file with a row for each step",
            read_recording=long_csv.read_recording,
            suffix=long_csv.SUFFIX,
            read_series=long_csv.read_series,
        ),
        Format(
            name="npz",
            about="an .npz file with x_train (sequences, channels, steps) and y_train",
            read_recording=npz.read_recording,
            suffix=npz.SUFFIX,
            read_series=npz.read_series,
        ),
    )
}


SOURCES = ("ucihar", "series")  # a published dataset, and data of the user


def open_source(source: str, path: str | Path | None) -> SequenceCache:
    """Open the whole dataset at `path`, or else that of the source. Reads it on first use.

    The format is recognised from the path. Without a path `ucihar` is downloaded.

    Raises:
        InputError: The source is unknown, the path is missing or has no sequences, a download failed, or a
            file is invalid. The message names file and line.
    """
    if source not in SOURCES:
        raise unknown("data source", source, SOURCES)
    if (shared_set := shared.find_split(SequenceCache, shared_name(source, path))) is not None:
        return shared_set
    if path is not None:
        file_format, files = _locate_files(path)
    elif source != "ucihar":
        raise InputError(f"{source} needs the path of your data. Pass --data PATH: {_describe_formats()}")
    else:
        file_format, files = _locate_files(fetch_files(source, ucihar.DATASETS[0].files))
    return open_sequence_cache(file_format.name, files, file_format.read_recording)


def shared_name(source: str, path: str | Path | None) -> str:
    """Return the name under which a search's storage keeps the dataset."""
    return f"sequences {source if path is None else path}"


def _locate_files(path: str | Path) -> tuple[Format, tuple[Path, ...]]:
    path = local_copy(path)
    folder = extract_if_archive(path)
    for file_format in FORMATS.values():
        if (files := file_format.find_files(folder)) is not None:
            return file_format, files
    if not path.exists():
        raise InputError(f"there is no {path} and no {path}_TRAIN.ts; pass --data PATH with one that exists")
    raise InputError(f"{path} has no sequences that can be read; pass {_describe_formats()}")


def are_sequences(path: str | Path) -> bool:
    """Return whether `path` is a dataset in one of FORMATS. Raises InputError for a damaged archive."""
    folder = extract_if_archive(path)
    return any(file_format.find_files(folder) is not None for file_format in FORMATS.values())


def _describe_formats() -> str:
    return "; ".join(file_format.about for file_format in FORMATS.values())


def nearly_sequences(folder: Path) -> Iterator[str]:
    """Yield what is wrong with a folder that is nearly a dataset of sequences, and what to do."""
    kinds = [file.suffix.lower() in SUFFIXES for file in folder.iterdir() if not is_clutter(file.name)]
    if not list_folders(folder) and 2 * sum(kinds) > len(kinds):
        yield (
            "looks like sequences, which are one CSV file with a row for each step, one NPZ file, or the "
            "name of .ts files. Join the files, and give the file"
        )


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

"""The table of sources of sequences, and the recognition of a path's format."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from automl.base.errors import InputError, unknown
from automl.data import shared
from automl.data.archive import extract_if_archive
from automl.data.download import Checksum, download_archive
from automl.data.files import is_clutter
from automl.data.near_layouts import list_folders
from automl.storage.cache_folder import cache_root
from automl.tasks.sequence_classification.data import ucihar
from automl.tasks.sequence_classification.data.cache import SequenceCache, open_sequence_cache
from automl.tasks.sequence_classification.data.formats import FORMATS, Format

SUFFIXES = (".csv", ".tsv", ".npz", ".npy", ".ts", ".arff", ".parquet")


@dataclass(frozen=True, kw_only=True)
class SequenceSource:
    """A dataset that `source` can name.

    Attributes:
        address: the archive to download; None for user data.
        sha256: its hash.
    """

    name: str
    about: str
    address: str | None = None
    sha256: str | None = None


SOURCES: dict[str, SequenceSource] = {
    source.name: source
    for source in (
        SequenceSource(
            name="ucihar",
            about="UCI HAR: 10,299 windows of a phone's sensors, 30 people in 6 activities",
            address=ucihar.ADDRESS,
            sha256=ucihar.SHA256,
        ),
        SequenceSource(name="series", about="your own sequences: .ts, CSV or NPZ"),
    )
}


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
    known = SOURCES[source]
    if path is not None:
        file_format, files = _locate_files(Path(path))
    elif known.address is None or known.sha256 is None:
        raise InputError(f"{source} needs the path of your data. Pass --data PATH: {_describe_formats()}")
    else:
        file_format, files = _locate_files(
            download_archive(known.address, source, cache_root(), Checksum(sha256=known.sha256))
        )
    return open_sequence_cache(file_format.name, files, file_format.read_recording)


def shared_name(source: str, path: str | Path | None) -> str:
    """Return the name under which a search's storage keeps the dataset."""
    return f"sequences {source if path is None else path}"


def _locate_files(path: Path) -> tuple[Format, tuple[Path, ...]]:
    path = path.expanduser()
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

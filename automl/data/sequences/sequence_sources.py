"""Where sequences come from: the table of sources, and of which format a path is."""

from dataclasses import dataclass
from pathlib import Path

from attention.errors import InputError, unknown
from automl.data import shared
from automl.data.archive import extract_cached, is_archive
from automl.data.download import Checksum, download_archive
from automl.data.sequences import ucihar
from automl.data.sequences.sequence_cache import SequenceCache, open_sequence_cache
from automl.data.sequences.sequence_formats import FORMATS, Format
from automl.storage.cache_folder import cache_root


@dataclass(frozen=True, kw_only=True)
class SequenceSource:
    """A dataset that can be named.

    address: where it is downloaded from, as an archive of this SHA-256; None for user data.
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
    """The whole dataset, read on first use: that at `path`, else that of the source.

    The format, one of FORMATS, is recognised from the path. Without a path `ucihar` is downloaded.

    Raises InputError for an unknown source, a path that is missing or of something else, a download that
    fails, and for everything that is wrong in the files, with file and line.
    """
    if source not in SOURCES:
        raise unknown("data source", source, SOURCES)
    if (shared_set := shared.find_split(SequenceCache, shared_name(source, path))) is not None:
        return shared_set
    known = SOURCES[source]
    if path is not None:
        form, files = _locate_files(Path(path))
    elif known.address is None or known.sha256 is None:
        raise InputError(f"{source} needs the path of your data; pass --data PATH: {_describe_formats()}")
    else:
        form, files = _locate_files(
            download_archive(known.address, source, cache_root(), Checksum(sha256=known.sha256))
        )
    return open_sequence_cache(form.name, files, form.read_recording)


def shared_name(source: str, path: str | Path | None) -> str:
    """Return the name of the dataset in a search's storage."""
    return f"sequences {source if path is None else path}"


def _locate_files(path: Path) -> tuple[Format, tuple[Path, ...]]:
    path = path.expanduser()
    place = _extract_if_archive(path)
    for form in FORMATS.values():
        if (files := form.find_files(place)) is not None:
            return form, files
    if not path.exists():
        raise InputError(f"there is no {path} and no {path}_TRAIN.ts; pass --data PATH with one that exists")
    raise InputError(f"{path} has no sequences that can be read; pass {_describe_formats()}")


def are_sequences(path: str | Path) -> bool:
    """Whether `path` is a dataset in one of FORMATS. Raises InputError for an archive that is damaged."""
    place = _extract_if_archive(Path(path).expanduser())
    return any(form.find_files(place) is not None for form in FORMATS.values())


def _extract_if_archive(path: Path) -> Path:
    return extract_cached(path, cache_root()) if path.is_file() and is_archive(path) else path


def _describe_formats() -> str:
    return "; ".join(form.about for form in FORMATS.values())

"""Where sequences come from: the table of sources, and of which format a path is."""

from dataclasses import dataclass
from pathlib import Path

from attention.errors import InputError, unknown
from automl.data import shared
from automl.data.archive import extracted, is_archive
from automl.data.download import Checksum, downloaded
from automl.data.sequences import ucihar
from automl.data.sequences.sequence_cache import Cache, cached
from automl.data.sequences.sequence_formats import FORMATS, Format
from automl.storage.cache_folder import cache_root


@dataclass(frozen=True, kw_only=True)
class Source:
    """A dataset that can be named.

    address: where it is downloaded from, as an archive of this SHA-256; None for user data.
    """

    name: str
    about: str
    address: str | None = None
    sha256: str | None = None


SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        Source(
            name="ucihar",
            about="UCI HAR: 10,299 windows of a phone's sensors, 30 people in 6 activities",
            address=ucihar.ADDRESS,
            sha256=ucihar.SHA256,
        ),
        Source(name="series", about="your own sequences: .ts, CSV or NPZ"),
    )
}


def opened(source: str, path: str | Path | None) -> Cache:
    """The whole dataset, read on first use: that at `path`, else that of the source.

    The format, one of FORMATS, is recognised from the path. Without a path `ucihar` is downloaded.

    Raises InputError for an unknown source, a path that is missing or of something else, a download that
    fails, and for everything that is wrong in the files, with file and line.
    """
    if source not in SOURCES:
        raise unknown("data source", source, SOURCES)
    if (shared_set := shared.find(Cache, shared_name(source, path))) is not None:
        return shared_set
    known = SOURCES[source]
    if path is not None:
        form, files = _located(Path(path))
    elif known.address is None or known.sha256 is None:
        raise InputError(f"{source} needs the path of your data; pass --data PATH: {_choices()}")
    else:
        form, files = _located(downloaded(known.address, source, cache_root(), Checksum(sha256=known.sha256)))
    return cached(form.name, files, form.read)


def shared_name(source: str, path: str | Path | None) -> str:
    """Return the name of the dataset in a search's storage."""
    return f"sequences {source if path is None else path}"


def _located(path: Path) -> tuple[Format, tuple[Path, ...]]:
    path = path.expanduser()
    place = _extracted(path)
    for form in FORMATS.values():
        if (files := form.find(place)) is not None:
            return form, files
    if not path.exists():
        raise InputError(f"there is no {path} and no {path}_TRAIN.ts; pass --data PATH with one that exists")
    raise InputError(f"{path} has no sequences that can be read; pass {_choices()}")


def are_sequences(path: str | Path) -> bool:
    """Whether `path` is a dataset in one of FORMATS. Raises InputError for an archive that is damaged."""
    place = _extracted(Path(path).expanduser())
    return any(form.find(place) is not None for form in FORMATS.values())


def _extracted(path: Path) -> Path:
    return extracted(path, cache_root()) if path.is_file() and is_archive(path) else path


def _choices() -> str:
    return "; ".join(form.about for form in FORMATS.values())

"""Cache files in a search's storage: one process writes them, and every node fetches those it lacks.

`use` passes the list of shared files to a process. The process reads and caches all other data itself.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from automl.base.errors import InputError
from automl.base.serialise import from_json, parse_json, read_file, write_json
from automl.data.arrow import ArrowFile
from automl.data.files import hash_file
from automl.data.splits import RULE
from automl.storage.cache_folder import cache_root, once
from automl.storage.storage import ATTEMPTS, Storage

File = TypeVar("File", bound=ArrowFile)
SHARED_FOLDER = ".data"  # in the storage, for all searches there
SHARED_FILE = "data.json"  # in a search's folder


@dataclass(frozen=True, kw_only=True)
class SharedSplit:
    """The file of a split: its name, size in bytes and SHA-256."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class SharedData:
    """The cache files in a storage.

    Attributes:
        sets: the file of each split by the name of the dataset, which includes the size of its images. One
            file may hold several splits.
    """

    address: str
    sets: Mapping[str, Mapping[str, SharedSplit]] = field(default_factory=dict)


_shared_data: SharedData | None = None


def use(shared: Mapping[str, Any] | None) -> None:
    """Let this process look into a storage first; None for no storage."""
    global _shared_data
    _shared_data = None if shared is None else from_json(SharedData, shared, "shared data")


def use_saved(folder: Path, storage: Storage) -> None:
    """Call `use` with the files that the search in `folder` has in its storage."""
    if sets := _read_saved(folder):
        use({"address": str(storage / SHARED_FOLDER), "sets": sets})
    else:
        use(None)


def _read_saved(folder: Path) -> dict[str, Any]:
    """Return the files of the search in `folder`. Raises InputError if their list is damaged."""
    if not (folder / SHARED_FILE).exists():
        return {}
    try:
        sets: dict[str, Any] = parse_json(read_file(folder / SHARED_FILE))
        from_json(SharedData, {"address": "", "sets": sets}, "content")
    except InputError as error:
        raise InputError(
            f"{folder / SHARED_FILE} is damaged ({error}). Delete it, and the data are written again"
        ) from error
    return sets


def is_shared(name: str | None, splits: Iterable[str]) -> bool:
    """Return whether a search's storage has these splits of a dataset, where they cannot change."""
    known = None if _shared_data is None or name is None else _shared_data.sets.get(_key(name))
    return known is not None and all(split in known for split in splits)


def find_split(kind: type[File], name: str, split: str = "train") -> File | None:
    """Return the file with a split of a dataset if it is shared. Fetches it when a node first needs it.

    Raises InputError if the fetched file differs from the one that was written.
    """
    if _shared_data is None or not is_shared(name, [split]):
        return None
    storage = Storage(_shared_data.address, attempts=ATTEMPTS)
    file = _shared_data.sets[_key(name)][split]

    def fetch(path: Path) -> None:
        try:
            storage.fetch(file.name, path)
        except OSError as error:
            if error.errno is not None and not isinstance(error, FileNotFoundError):
                raise  # an error of this machine's disk
            raise InputError(f"the shared data {storage}/{file.name} cannot be fetched ({error})") from error
        with open(path, "rb") as fetched:
            received = hashlib.file_digest(fetched, "sha256").hexdigest()
        if path.stat().st_size != file.size or received != file.sha256:
            raise InputError(
                f"the shared data {storage}/{file.name} are damaged ({path.stat().st_size} bytes of "
                f"{file.size}). Delete the file, and resume the search, which writes it again"
            )

    return kind(once(cache_root() / file.name, fetch, kind.is_sound, needed=file.size))


def publish(storage: Storage, name: str, files: Mapping[str, Path], folder: Path) -> dict[str, Any]:
    """Copy the cache files of a dataset's splits into the storage, and list them in the search's folder.

    `files` has the file of each split; one file may hold several. Returns the argument of `use`. Raises
    InputError if writing to the storage failed.
    """
    target = storage / SHARED_FOLDER
    described = {}
    for split, path in files.items():
        size = path.stat().st_size
        described[split] = {"name": path.name, "size": size, "sha256": hash_file(path)}
        try:
            if target.size(path.name) != size:
                target.send(path, path.name)
        except OSError as error:
            raise InputError(f"the data could not be written to --storage {storage} ({error})") from error
    saved = _read_saved(folder)
    sets = {**saved, _key(name): {**saved.get(_key(name), {}), **described}}
    write_json(folder / SHARED_FILE, sets)
    return {"address": str(target), "sets": sets}


def _key(name: str) -> str:
    """Return the name of a dataset with the split rule, so that files of another rule are not used."""
    return f"{name}, split by rule {RULE}"

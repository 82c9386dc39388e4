"""Files of the cache in a search's storage: one process writes them, and every node fetches what it lacks.

`use` passes a process the list of shared files. It reads and caches all others itself.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from attention.errors import InputError
from automl.data.arrow import ArrowFile
from automl.data.digest import file_digest
from automl.data.splits import RULE
from automl.storage.cache_folder import cache_root
from automl.storage.storage import Storage
from search.serialise import from_json, parse_json, read_file, write_json

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
    """What is in a storage.

    address: of the folder. sets: by the name of each dataset, which tells the size of its images, too, the
    file of each split that is there; one file may have several.
    """

    address: str
    sets: Mapping[str, Mapping[str, SharedSplit]] = field(default_factory=dict)


_shared_data: SharedData | None = None


def use(shared: Mapping[str, Any] | None) -> None:
    """Have this process look into a storage first; None for no storage."""
    global _told
    _shared_data = None if shared is None else from_json(SharedData, shared, "shared data")


def use_saved(folder: Path, storage: Storage) -> None:
    """`use` what the search in `folder` has in its storage, if anything."""
    if sets := _read_saved(folder):
        use({"address": str(storage / SHARED_FOLDER), "sets": sets})
    else:
        use(None)


def _read_saved(folder: Path) -> dict[str, Any]:
    """What the storage has for the search in `folder`. Raises InputError when that list is damaged."""
    if not (folder / SHARED_FILE).exists():
        return {}
    try:
        sets: dict[str, Any] = parse_json(read_file(folder / SHARED_FILE))
        from_json(SharedData, {"address": "", "sets": sets}, "content")
    except InputError as error:
        raise InputError(
            f"{folder / SHARED_FILE} is damaged ({error}); delete it, and the data are put there again"
        ) from error
    return sets


def is_shared(name: str, splits: Iterable[str]) -> bool:
    """Return whether these splits of a dataset come from a search's storage, where they cannot change."""
    known = _shared_data.sets.get(_key(name)) if _shared_data is not None else None
    return known is not None and all(split in known for split in splits)


def find_split(kind: type[File], name: str, split: str = "train") -> File | None:
    """Return the file that has a split of a dataset, if it is shared."""
    if _shared_data is None or not is_shared(name, [split]):
        return None
    return fetch_cached(kind, Storage(_shared_data.address), **vars(_shared_data.sets[_key(name)][split]))


def fetch_cached(kind: type[File], storage: Storage, *, name: str, size: int, sha256: str) -> File:
    """The cache file `name`, which is fetched the first time that this node needs it.

    Raises InputError when what comes is not what was put there.
    """

    def fetch(path: Path) -> None:
        try:
            storage.fetch(name, path)
        except OSError as error:
            if error.errno is not None and not isinstance(error, FileNotFoundError):
                raise  # of this machine's disk
            raise InputError(f"the shared data {storage}/{name} cannot be fetched ({error})") from error
        with open(path, "rb") as file:
            came = hashlib.file_digest(file, "sha256").hexdigest()
        if path.stat().st_size != size or came != sha256:
            raise InputError(
                f"the shared data {storage}/{name} are damaged ({path.stat().st_size} bytes of {size}); "
                f"delete the file, and resume the search, which puts it there again"
            )

    return kind.open_copy(name, fetch, needed=size)


def publish(storage: Storage, name: str, files: Mapping[str, Path], folder: Path) -> dict[str, Any]:
    """Put the cache files of a dataset's splits into the storage, and what is there into the search's folder.

    files: of each split; one file may have several.
    Returns what `use` takes. Raises InputError when the storage does not take them.
    """
    there = storage / SHARED_FOLDER
    described = {}
    for split, path in files.items():
        size = path.stat().st_size
        described[split] = {"name": path.name, "size": size, "sha256": file_digest(path, cache_root())}
        try:
            if there.size(path.name) != size:
                there.send(path, path.name)
        except OSError as error:
            raise InputError(f"--storage {storage} does not take the data ({error})") from error
    before = _read_saved(folder)
    sets = {**before, _key(name): {**before.get(_key(name), {}), **described}}
    write_json(folder / SHARED_FILE, sets)
    return {"address": str(there), "sets": sets}


def _key(name: str) -> str:
    """Return the name of a dataset as it is split now: one that was split by another rule is not used."""
    return f"{name}, split by rule {RULE}"

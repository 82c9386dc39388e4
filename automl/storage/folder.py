"""The folder of a search: making, finding and locking it.

A search in an object store has a working copy of it on this machine, see `automl.storage.working_copy`.
"""

import os
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import Protocol

from filelock import FileLock, Timeout

from automl.base.atomic import STUDY_ROOM, format_disk_full, full_disk_errno, is_temporary, remove
from automl.base.errors import InputError
from automl.base.options import STORAGE, format_command
from automl.base.serialise import read_file
from automl.config.nouns import Place
from automl.config.settings import ParsedSettings
from automl.storage import working_copy
from automl.storage.metadata import (
    SEARCH_FILE,
    SearchMetadata,
    collect_provenance,
    read_metadata,
    write_metadata,
)
from automl.storage.storage import Storage
from search.record import TRIALS_FOLDER
from search.study import STUDY_FILE
from search.trial_scheduler import Plan

REPORT_FOLDER = "report"  # `automl report` writes it while the search runs
LOCK = ".lock"
PREPARED = "confirm"  # what a comparison of commands writes before `search.json`


@contextmanager
def new_folder(
    settings: ParsedSettings,
    plan: Plan,
    *,
    fingerprint: str,
    data: str,
    scale: str = "",
    prepare: Callable[[Path], object] = lambda folder: None,
) -> Iterator[tuple[Path, SearchMetadata]]:
    """Create the folder of a search. Remove it if validation fails before the first trial.

    `prepare` writes what the search needs before `search.json`, with which it exists. Raise InputError if the
    folder exists or cannot be written.
    """
    place = settings.place
    name = place.name or f"{settings.question.title}-{time.strftime('%Y%m%d-%H%M%S')}"
    metadata = SearchMetadata(
        identity=uuid.uuid4().hex,
        settings=settings.absolute().change(place={"name": name}),
        plan=plan,
        fingerprint=fingerprint,
        data=data,
        provenance=collect_provenance(),
        scale=scale,
    )
    location = metadata.location
    folder = _folder(location)
    try:
        if location.exists(SEARCH_FILE) or (location.local is not None and not _is_unused(folder)):
            raise _name_taken(name, place.storage)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_written(place.storage, folder, error) from error
    with locked(folder, name):
        folder.mkdir(exist_ok=True)  # the previous holder of the lock may have deleted it
        # Another process may have created the search since the check above.
        if location.local is None:  # it may be the copy of a deleted search of the same name
            for path in folder.iterdir():
                if path.name != LOCK:
                    remove(path)
        elif not _is_unused(folder):
            raise _name_taken(name, place.storage)
        with _writing(location, folder) as delete:
            if (folder / SEARCH_FILE).exists():
                raise _name_taken(name, place.storage)
            try:
                try:
                    prepare(folder)
                    write_metadata(folder, metadata)
                except OSError as error:
                    raise _not_written(place.storage, folder, error) from error
                yield folder, metadata
            except InputError:
                if not (folder / TRIALS_FOLDER).exists():
                    delete()
                raise


def check_new(place: Place) -> None:
    """Raise InputError if `new_folder` would: the search exists, or its storage cannot be written.

    On a disk, create a folder and remove it. In an object store, only check that the bucket exists.
    """
    root = Storage(place.storage)
    try:
        if place.name is not None:
            location = root / place.name
            if location.exists(SEARCH_FILE) or not (location.local is None or _is_unused(location.local)):
                raise _name_taken(place.name, place.storage)
        if root.local is None:
            # Write no file, as pyarrow would leave a marker of the folder above it.
            if not root.has_bucket():
                raise InputError(f"--storage {place.storage} names a bucket that does not exist; create it")
        else:
            above = next(path for path in (root.local, *root.local.parents) if path.exists())
            Path(tempfile.mkdtemp(dir=above)).rmdir()
    except OSError as error:
        raise _not_written(place.storage, root.local or Path.cwd(), error) from error


def _name_taken(name: str, storage: str) -> InputError:
    taken = f"a search called {name!r} exists already in {storage}; choose another --name"
    with suppress(InputError):  # It is another folder.
        _, metadata = find_search(name, storage)
        taken += f", or resume it: {format_command(metadata.resume_command, name, storage)}"
    return InputError(taken)


def _not_written(storage: str, folder: Path, error: OSError) -> InputError:
    code = full_disk_errno(error)
    reason = error.strerror or error if code is None else format_disk_full(folder, STUDY_ROOM, code)
    return InputError(
        f"--storage {storage} cannot be written ({reason}); choose a folder that can be written"
    )


def _is_unused(folder: Path) -> bool:
    """Return True if `folder` does not exist, or is that of a search killed before `search.json`."""
    if not folder.exists():
        return True
    return folder.is_dir() and all(
        file.name in (LOCK, PREPARED) or is_temporary(file.name) for file in folder.iterdir()
    )


@contextmanager
def old_folder(name: str, storage: str) -> Iterator[tuple[Path, SearchMetadata]]:
    """Open and lock the folder of an earlier search. Raise InputError if it does not exist."""
    folder, _ = find_search(name, storage)
    with locked(folder, name), _writing(Storage(storage) / name, folder):
        for path in folder.rglob(".*"):  # files that a killed process was writing
            if is_temporary(path.name) and path.relative_to(folder).parts[0] != REPORT_FOLDER:
                remove(path)
        yield folder, read_metadata(folder, storage)


def find_search(name: str, storage: str) -> tuple[Path, SearchMetadata]:
    """Return the folder and metadata of a search. Raise InputError if it does not exist."""
    root = Storage(storage)
    if Path(name).name != name:  # a path leads to other folders
        raise no_search(name, storage)
    location = root / name
    folder = _folder(location)
    with reached(root):
        if not location.has(SEARCH_FILE):
            raise no_search(name, storage)
        if location.local is None:
            working_copy.update(location, folder)
    return folder, read_metadata(folder, storage)


def find_model_search(name: str, storage: str) -> tuple[Path, SearchMetadata]:
    """Return the folder and metadata of a search for models. Raise InputError if it compares commands."""
    folder, metadata = find_search(name, storage)
    if not metadata.has_trials:
        raise InputError(
            f"{name!r} compares commands, so it has no models and no space; name a search. Its result: "
            f"{format_command('report', name, storage)}"
        )
    return folder, metadata


def no_search(name: str, storage: str) -> InputError:
    """Return the error for a search that does not exist. It lists the existing ones."""
    root = Storage(storage)
    names = [other for other in root.folders() if (root / other).has(SEARCH_FILE)]
    existing = f"there are {', '.join(names[-10:])}" if names else "there is none"
    return InputError(f"no search called {name!r} in {storage}; {existing}. Check --search and --storage")


def exists(name: str, storage: str) -> bool:
    """Return True if a search exists. Raise InputError if the storage is unreachable."""
    root = Storage(storage)
    with reached(root):
        return (root / name).has(SEARCH_FILE)


class NamedSearch(Protocol):
    """Result or report of a search."""

    @property
    def search(self) -> str:
        """The name of the search."""

    @property
    def storage(self) -> str:
        """The storage of the search."""


def resolve_search(
    search: str | NamedSearch | None, storage: str | PathLike[str] | None = None
) -> tuple[str, str]:
    """Return the name and the storage of a search.

    Args:
        search: Its name or its result. None selects the latest search, and prints its name on standard error.
        storage: Its storage. Default: that of the result, or `searches`.

    Raises:
        InputError: `search` is neither a name nor a result, or there is no search.
    """
    if search is None:
        storage = fspath(storage or STORAGE)
        latest = find_latest(storage)
        print(f"the latest search in {storage} is {latest}", file=sys.stderr)
        return latest, storage
    if isinstance(search, str):
        return search, fspath(storage or STORAGE)
    if not (hasattr(search, "search") and hasattr(search, "storage")):
        raise InputError(f"a search must be a name or a result, such as that of run_search; got {search!r}")
    return search.search, fspath(storage or search.storage)


def find_latest(storage: str) -> str:
    """Return the name of the search that was last started, resumed, confirmed or synced.

    Raise InputError if there is none.
    """
    times = last_worked(storage)
    if not times:
        raise InputError(f"there is no search in {storage}; run automl search first, or check --storage")
    return max(times, key=lambda name: times[name])


def last_worked(storage: str) -> dict[str, float]:
    """Return the time at which a process last wrote to each search [s since 1970].

    On a disk, it is the last start or end of a process, or the last change of a study. In an object store, it
    is the last heartbeat. Reading does not count.
    """
    root = Storage(storage)
    with reached(root):
        locations = {name: root / name for name in root.folders() if (root / name).has(SEARCH_FILE)}
        return {name: _last_worked(location) for name, location in locations.items()}


def _last_worked(location: Storage) -> float:
    if location.local is None:
        written = working_copy.last_written(location)
        return location.changed(SEARCH_FILE) / 1e9 if written is None else written
    files = (SEARCH_FILE, STUDY_FILE, f"*/{STUDY_FILE}")
    times = [file.stat().st_mtime for name in files for file in location.local.glob(name)]
    return max(times, default=0.0)  # it may be being deleted


def is_running(folder: Path, location: Storage) -> bool:
    """Return True if a process runs the search, on this machine or one that shares its disk or store."""
    if location.local is None:
        with reached(location):
            return working_copy.is_written(location)
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    lock.release()
    return False


def is_lost(folder: Path, location: Storage) -> bool:
    """Return True if there are files of trials, but the study is missing or empty."""
    study = folder / STUDY_FILE
    if study.exists() and b"\n" in read_file(study):
        return False
    return (folder / TRIALS_FOLDER).exists() or bool((location / TRIALS_FOLDER).files())


def check_not_lost(folder: Path, location: Storage) -> None:
    """Raise InputError if there are files of trials, but the study is missing or empty."""
    if is_lost(folder, location):
        raise InputError(
            f"{folder / STUDY_FILE} is missing or empty, but trials were started; restore it from a backup, "
            f"or delete the search with its folder, {location}"
        )


@contextmanager
def _writing(location: Storage, folder: Path) -> Iterator[Callable[[], None]]:
    """Lock the folder for writing by this process inside the block. Yield a function that deletes it."""
    if location.local is None:
        with working_copy.writing(location, folder) as delete:
            yield delete
        return
    _mark(folder)
    try:
        yield partial(shutil.rmtree, folder, ignore_errors=True)
    finally:
        _mark(folder)


def _mark(folder: Path) -> None:
    """Record the time of use, for `last_worked`."""
    with suppress(OSError):  # the file is not written yet, or was deleted
        now = time.time_ns()  # the file system's own time may be some milliseconds old
        os.utime(folder / SEARCH_FILE, ns=(now, now))


@contextmanager
def locked(folder: Path, name: str) -> Iterator[None]:
    """Keep other processes that share the disk from writing the folder inside the block."""
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=1)  # `is_running` may hold it for a moment
    except (Timeout, FileNotFoundError):  # the folder may just have been deleted
        raise InputError(
            f"search {name!r} is running in another process; wait until it ends, or stop it"
        ) from None
    try:
        yield
    finally:
        lock.release()


def _folder(location: Storage) -> Path:
    return location.local or working_copy.folder_of(location)


@contextmanager
def reached(location: Storage) -> Iterator[None]:
    """Raise InputError if the storage is unreachable inside the block."""
    try:
        yield
    except OSError as error:
        reason = str(error).strip().splitlines()[0][:300]
        raise InputError(
            f"--storage {location} cannot be read ({reason}); check that it exists and is readable"
        ) from error

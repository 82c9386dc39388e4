"""The folder of a search, and its `search.json`: the settings, the versions of the code, the machine.

A search that is stored in an object store has its folder here as a working copy, see
`automl.storage.working_copy`.
"""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from os import PathLike, fspath
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from filelock import FileLock, Timeout

from attention import InputError
from automl.config.command_line import STORAGE, format_command
from automl.config.settings import Settings
from automl.storage import working_copy
from automl.storage.addresses import public
from automl.storage.disk import STUDY_ROOM, disk_full, no_room
from automl.storage.storage import Storage
from search.atomic import is_temporary, remove
from search.callback import SearchRecord
from search.record import TRIALS_FOLDER
from search.serialise import from_json, read_file, read_json, write_json
from search.space import Space, SpaceFunction, fingerprint, space_name
from search.study import STUDY_FILE
from search.trial_scheduler import Plan

SEARCH_FILE = "search.json"
SPACE_FILE = "space.py"  # the source of a space that was given as a function
NOTEBOOK = "__main__:"  # begins the names of functions that no other process can import; so does `<` in them
REPORT_FOLDER = "report"  # which `automl report` writes, whoever runs the search
LOCK = ".lock"
FORMAT = 1

PACKAGES = (
    "attention-automl",
    "ray",
    "torch",
    "torchvision",
    "optuna",
    "mlflow",
    "fastai",
    "numpy",
    "pyarrow",
)


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """The types of what `provenance` returns."""

    command: Sequence[str] = ()
    started: str = ""
    python: str = ""
    system: str = ""
    cores: int | None = None
    gpus: Sequence[str] = ()
    commit: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SearchMetadata:
    """What `search.json` holds. Raises InputError for what no search writes.

    identity: distinguishes this search from others of the same name.
    plan: the number of trials, the budget, the metric and objectives.
    fingerprint: of the space's distributions and configurations. data: the digest of all splits.
    provenance: versions, hardware, the code's git commit and the command line.
    """

    identity: str
    settings: Settings
    plan: Plan
    fingerprint: str
    data: str
    provenance: dict[str, Any]

    def __post_init__(self) -> None:
        if self.settings.name is None:
            raise InputError("settings.name is missing")
        from_json(Provenance, self.provenance, "provenance", strict=False)

    @property
    def name(self) -> str:
        assert self.settings.name is not None
        return self.settings.name

    @property
    def location(self) -> Storage:
        """Where the search is kept, with its trials' checkpoints."""
        return Storage(self.settings.storage) / self.name

    def record(self, folder: Path) -> SearchRecord:
        """Return what callbacks get of the search. folder: of the search or the confirmation."""
        metric = self.plan.metric
        return SearchRecord(
            name=self.name,
            folder=folder,
            storage=self.settings.storage,
            metric=metric.name,
            maximize=metric.maximize,
            trials=self.plan.trials,
            settings=MappingProxyType(self.settings.to_json()),
        )

    def load_space(self, given: str | SpaceFunction | Space | None = None) -> Space:
        """Load the space of the search. Raise InputError if it cannot be loaded or has changed.

        given: in the place of its name, for one that was a function of a notebook or has been moved.
        """
        settings = self.settings
        try:
            space = (settings if given is None else replace(settings, space=given)).load_space()
        except InputError as error:
            name = settings.space_name
            if given is not None or not (name.startswith(NOTEBOOK) or "<" in name):
                raise
            raise InputError(
                f"search {self.name!r} was made with the function {name.removeprefix(NOTEBOOK)} of a "
                f"notebook or script, which is not at hand here. Define it and give it as space=FUNCTION; or "
                f"put it into a file, with what it imports, and name that by --space file.py:function. Its "
                f"source is in {self.location}/{SPACE_FILE}"
            ) from error
        if fingerprint(space) != self.fingerprint:
            raise InputError(
                f"space {space_name(settings.space if given is None else given)!r} has changed since search "
                f"{self.name!r} was made, or is another one; its trials are not comparable with new ones. "
                f"Restore the old space, or start another search with --warm-start {self.name}."
            )
        return space


@contextmanager
def new_folder(
    settings: Settings, plan: Plan, *, fingerprint: str, data: str
) -> Iterator[tuple[Path, SearchMetadata]]:
    """Create the folder of a search. Remove it if validation fails before the first trial.

    Raises InputError when it exists or cannot be written.
    """
    name = settings.name or f"{settings.title}-{time.strftime('%Y%m%d-%H%M%S')}"
    metadata = SearchMetadata(
        identity=uuid.uuid4().hex,
        settings=replace(settings.absolute(), name=name),
        plan=plan,
        fingerprint=fingerprint,
        data=data,
        provenance=provenance(),
    )
    location = metadata.location
    folder = _folder(location)
    try:
        if location.exists(SEARCH_FILE) or (location.local is not None and not _may_begin(folder)):
            raise _name_taken(name, metadata.settings.storage)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_written(settings, folder, error) from error
    with locked(folder, name):
        folder.mkdir(exist_ok=True)  # or whoever had the lock has given up
        # Another process may have begun one, and even ended it, since we looked.
        if location.local is None:
            _empty(folder)  # of another search of that name, which has gone
        elif not _may_begin(folder):
            raise _name_taken(name, metadata.settings.storage)
        with _writing(location, folder) as give_up:
            if (folder / SEARCH_FILE).exists():
                raise _name_taken(name, metadata.settings.storage)
            try:
                try:
                    write_metadata(folder, metadata)
                except OSError as error:
                    raise _not_written(settings, folder, error) from error
                yield folder, metadata
            except InputError:
                if not (folder / TRIALS_FOLDER).exists():
                    give_up()
                raise


def check_new(settings: Settings) -> None:
    """Raise InputError if `new_folder` would: the search exists, or its storage cannot be written.

    On a disk, creates a folder and removes it. An object store is only asked whether it has the bucket.
    """
    root = Storage(settings.storage)
    try:
        if settings.name is not None:
            location = root / settings.name
            if location.exists(SEARCH_FILE) or not (location.local is None or _may_begin(location.local)):
                raise _name_taken(settings.name, settings.storage)
        if root.local is None:
            # No file is written: pyarrow would leave a mark for the folder above it.
            if not root.has_bucket():
                raise InputError(
                    f"--storage {settings.storage} names a bucket that does not exist; create it"
                )
        else:
            above = next(path for path in (root.local, *root.local.parents) if path.exists())
            Path(tempfile.mkdtemp(dir=above)).rmdir()
    except OSError as error:
        raise _not_written(settings, root.local or Path.cwd(), error) from error


def _name_taken(name: str, storage: str) -> InputError:
    return InputError(
        f"a search called {name!r} exists already in {storage}; give this one another --name, or resume that "
        f"one: {format_command('search --resume', name, storage)}"
    )


def _not_written(settings: Settings, folder: Path, error: OSError) -> InputError:
    code = no_room(error)
    why = error.strerror or error if code is None else disk_full(folder, STUDY_ROOM, code)
    return InputError(f"--storage {settings.storage} cannot be written ({why}); name a folder that can")


def _may_begin(folder: Path) -> bool:
    """Return whether `folder` is not there yet, or holds what a killed search has before its first file."""
    if not folder.exists():
        return True
    return folder.is_dir() and all(file.name == LOCK or is_temporary(file.name) for file in folder.iterdir())


def _empty(folder: Path) -> None:
    """Delete all but the lock."""
    for path in folder.iterdir():
        if path.name != LOCK:
            remove(path)


@contextmanager
def old_folder(name: str, storage: str) -> Iterator[tuple[Path, SearchMetadata]]:
    """Open the folder of an earlier search for this process alone. Raise InputError if there is none."""
    folder, _ = find_search(name, storage)
    with locked(folder, name), _writing(Storage(storage) / name, folder):
        for path in folder.rglob(".*"):  # what a killed process was writing
            if is_temporary(path.name) and path.relative_to(folder).parts[0] != REPORT_FOLDER:
                remove(path)
        yield folder, read_metadata(folder, storage)


def find_search(name: str, storage: str) -> tuple[Path, SearchMetadata]:
    """Return the folder and metadata of a search. Raise InputError with the existing names otherwise."""
    root = Storage(storage)
    location = root / name
    folder = _folder(location)
    with reached(root):
        if not location.has(SEARCH_FILE):
            raise no_search(name, storage)
        if location.local is None:
            working_copy.update(location, folder)
    return folder, read_metadata(folder, storage)


def no_search(name: str, storage: str) -> InputError:
    """Return the error for a search that does not exist; it lists those that do."""
    root = Storage(storage)
    names = [other for other in root.folders() if (root / other).has(SEARCH_FILE)]
    there = f"there are {', '.join(names[-10:])}" if names else "there is none"
    return InputError(f"no search called {name!r} in {storage}; {there}. Is --storage right?")


def exists(name: str, storage: str) -> bool:
    """Return whether a search exists. Raise InputError if the store does not answer."""
    root = Storage(storage)
    with reached(root):
        return (root / name).has(SEARCH_FILE)


class NamedSearch(Protocol):
    """A result or report that knows which search it is of."""

    @property
    def search(self) -> str:
        """The name of the search."""

    @property
    def storage(self) -> str:
        """The folder or object store that the search is in."""


def resolve_search(
    search: str | NamedSearch | None, storage: str | PathLike[str] | None = None
) -> tuple[str, str]:
    """Return the name and the storage of a search that is given by its name or by a result.

    None stands for the latest search in `storage`, which standard error then names. Without `storage`, a
    result is looked up where it is, and a name in `searches`.

    Raises InputError for what is neither a name nor a result, and when there is no latest search.
    """
    if search is None:
        storage = fspath(storage or STORAGE)
        latest = find_latest(storage)
        print(f"the latest search in {storage} is {latest}", file=sys.stderr)
        return latest, storage
    if isinstance(search, str):
        return search, fspath(storage or STORAGE)
    if not (hasattr(search, "search") and hasattr(search, "storage")):
        raise InputError(
            f"a search is given by its name or by a result, such as that of run_search; got {search!r}"
        )
    return search.search, fspath(storage or search.storage)


def find_latest(storage: str) -> str:
    """Return the name of the search that was last started, resumed, confirmed or synced.

    Raises InputError when there is none.
    """
    worked = last_worked(storage)
    if not worked:
        raise InputError(f"there is no search in {storage}; run automl search first. Is --storage right?")
    return max(worked, key=lambda name: worked[name])


def last_worked(storage: str) -> dict[str, float]:
    """Return when a process last wrote each search, in seconds since 1970.

    On a disk that is when it came or went, or when the study of the search or of one of its confirmations
    was last written; in an object store, its last heartbeat. Reading does not count.
    """
    root = Storage(storage)
    with reached(root):
        places = {name: root / name for name in root.folders() if (root / name).has(SEARCH_FILE)}
        return {name: _last_worked(location) for name, location in places.items()}


def _last_worked(location: Storage) -> float:
    if location.local is None:
        written = working_copy.last_written(location)
        return location.changed(SEARCH_FILE) / 1e9 if written is None else written
    files = (SEARCH_FILE, STUDY_FILE, f"*/{STUDY_FILE}")
    times = [file.stat().st_mtime for name in files for file in location.local.glob(name)]
    return max(times, default=0.0)  # none where it is being deleted


def read_metadata(folder: Path, storage: str) -> SearchMetadata:
    """Read `search.json` of a search that is now in `storage`. Raise InputError if it is corrupt.

    A search is called as its folder is, which may have been renamed.
    """
    metadata = read_json(SearchMetadata, folder / SEARCH_FILE, format=FORMAT)
    try:
        settings = replace(metadata.settings, storage=storage, name=folder.name)
    except InputError as error:
        raise InputError(
            f"the folder {folder} was renamed to what no search may be called: {error}"
        ) from error
    return replace(metadata, settings=settings)


def write_metadata(folder: Path, metadata: SearchMetadata) -> None:
    """Write `search.json`, atomically."""
    write_json(folder / SEARCH_FILE, metadata, format=FORMAT)


def is_running(folder: Path, location: Storage) -> bool:
    """Return whether a process runs the search, here or on a machine that shares its locks or store."""
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


def is_lost(folder: Path, metadata: SearchMetadata) -> bool:
    """Return whether there were trials, but their study is missing or empty."""
    study = folder / STUDY_FILE
    if study.exists() and b"\n" in read_file(study):
        return False
    return (folder / TRIALS_FOLDER).exists() or bool((metadata.location / TRIALS_FOLDER).files())


def check_not_lost(folder: Path, metadata: SearchMetadata) -> None:
    """Raise InputError where there were trials, but their study is missing or empty."""
    if is_lost(folder, metadata):
        raise InputError(
            f"{folder / STUDY_FILE} is missing or empty, but there were trials; restore it from a copy, or "
            f"delete the search: {format_command('remove', metadata.name, metadata.settings.storage)}"
        )


@contextmanager
def _writing(location: Storage, folder: Path) -> Iterator[Callable[[], None]]:
    """Lock the folder, so that only this process writes the search inside the block.

    Yields a function that deletes the search.
    """
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
    """Note that a process is running the search, for `last_worked`."""
    with suppress(OSError):  # it is not written yet, or it was given up
        now = time.time_ns()  # what the file system takes for now may be some milliseconds old
        os.utime(folder / SEARCH_FILE, ns=(now, now))


@contextmanager
def locked(folder: Path, name: str) -> Iterator[None]:
    """Keep other processes that share the disk from writing the folder inside the block."""
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=1)  # `is_running` may hold it for a moment
    except (Timeout, FileNotFoundError):  # it was given up just now
        raise InputError(
            f"search {name!r} is running in another process; only one process may run a search"
        ) from None
    try:
        yield
    finally:
        lock.release()


def _folder(location: Storage) -> Path:
    return location.local or working_copy.folder_of(location)


@contextmanager
def reached(location: Storage) -> Iterator[None]:
    """Raise InputError if the storage does not answer inside the block."""
    try:
        yield
    except OSError as error:
        reason = str(error).strip().splitlines()[0][:300]
        raise InputError(
            f"--storage {location} cannot be read ({reason}); is it there, and may this machine read it?"
        ) from error


def provenance() -> dict[str, Any]:
    """Return the command, machine, code and versions."""
    from automl.config.device import gpu_names  # it imports torch

    return {
        "command": _command(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "gpus": gpu_names(),
        "commit": _commit(),
        "versions": {name: found for name in PACKAGES if (found := _version(name))},
    }


def _command() -> list[str]:
    """Return the command line, or nothing in a notebook, where it is that of the kernel."""
    program = Path(sys.argv[0]).name
    return [] if program.startswith("ipykernel") else [program, *map(public, sys.argv[1:])]


def _version(package: str) -> str | None:
    """None where it is not installed, as this one in a checkout that was sent to a cluster."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Return the git commit, with `+` if files differ from it, or None outside of a repository."""
    here = Path(__file__).parent
    try:
        # Installed below another repository, this code is not part of it.
        subprocess.run(
            ["git", "ls-files", "--error-unmatch", Path(__file__).name],
            cwd=here, capture_output=True, timeout=10, check=True,
        )  # fmt: skip
        done = subprocess.run(
            ["git", "describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"],
            cwd=here, capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None

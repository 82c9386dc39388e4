"""Delete a search with its checkpoints, or what nothing has used for long: `automl remove` and `clean`."""

import os
import re
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from automl.base.errors import InputError
from automl.base.units import parse_seconds
from automl.storage import folder as search_folder
from automl.storage import working_copy
from automl.storage.cache_folder import cache_root
from automl.storage.metadata import SEARCH_FILE
from automl.storage.storage import Storage


@dataclass(frozen=True, kw_only=True)
class Removable:
    """Search that can be deleted.

    Attributes:
        location: Its folder, possibly in an object store.
        size: Its size [bytes].
        experiment: The MLflow experiment of its runs, if it is known.
    """

    name: str
    location: Storage
    size: int
    experiment: str | None

    @property
    def description(self) -> str:
        """Name, folder and size in one line."""
        return f"search {self.name} in {self.location}, {self.size / 1e6:,.1f} MB"

    @property
    def stays(self) -> str:
        """Data that are not deleted, in one line."""
        where = f" in experiment {self.experiment}" if self.experiment else ""
        return f"its runs in MLflow{where}, exported and registered models, decoded images"


def find_removable(name: str, storage: str = "searches") -> Removable:
    """Return the search called `name`, which may be damaged.

    Raise InputError if it does not exist, or if a process is running it.
    """
    root = Storage(storage)
    with search_folder.reached(root):
        # A name such as `..` would be another folder.
        if name not in root.folders() or not (root / name).has(SEARCH_FILE):
            raise search_folder.no_search(name, storage)
        location = root / name
        if search_folder.is_running(location.local or working_copy.folder_of(location), location):
            raise InputError(
                f"search {name!r} is running, or was killed less than a minute ago; stop it before you "
                f"delete it"
            )
        size = location.total()
    try:
        experiment = search_folder.find_search(name, storage)[1].settings.question.title
    except InputError:  # a damaged search can be deleted, too
        experiment = None
    return Removable(name=name, location=location, size=size, experiment=experiment)


def run_remove(search: str | search_folder.NamedSearch, storage: str | None = None) -> None:
    """Delete a search with its checkpoints, and its working copy on this machine.

    Call it again if it was interrupted. Its runs in MLflow, exported and registered models, and decoded data
    are not deleted.

    Args:
        search: The name of the search, or its result.
        storage: The storage of the search. Default: that of the result, or `searches`.

    Returns:
        Nothing.

    Raises:
        InputError: The search does not exist, it is running, or it cannot be deleted.

    Example:
        After the example of `run_search`:

        >>> automl.run_remove(result)
        >>> [row.name for row in automl.list_searches() if row.name == "example"]
        []
    """
    name, storage = search_folder.resolve_search(search, storage)
    location = find_removable(name, storage).location
    try:
        if location.local is not None:
            with search_folder.locked(location.local, name):
                _empty(location.local)
            shutil.rmtree(location.local)
        else:
            for file in sorted(location.files(), key=lambda file: file == SEARCH_FILE):
                location.remove(file)
            location.clear()
            shutil.rmtree(working_copy.folder_of(location), ignore_errors=True)
    except OSError as error:
        raise InputError(
            f"search {name!r} was not deleted completely ({error}); fix that and run the command again"
        ) from error


def _empty(folder: Path) -> None:
    """Delete everything except the lock. Delete `search.json` last, so that a repeated call finds it."""
    for path in sorted(folder.iterdir(), key=lambda path: path.name == SEARCH_FILE):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != search_folder.LOCK:
            path.unlink()


LONG = "30d"  # time without use from which on `clean` deletes
KINDS = {
    "downloads": "downloaded datasets",
    "extracted": "extracted archives",
    "commits": "checked-out commits",
    "evaluators": "copies of evaluators",
    "code-index": "indices of source files",
    "inductor": "compiled layers",
    "profile": "measured costs of models",
}
DECODED, SESSIONS = "decoded data", "Ray's logs of ended processes"


@dataclass(frozen=True, kw_only=True)
class UnusedFiles:
    """Files of one kind that nothing has used for long. They are made again when they are needed.

    Attributes:
        kind: What they are, in words.
        size: Their size [bytes].
        days: Days since the last use of the one used last.
    """

    kind: str
    folder: Path
    paths: list[Path]
    size: int
    days: float

    def __str__(self) -> str:
        return (
            f"{self.kind:30}{len(self.paths):>7,} entries{self.size / 1e6:>12,.1f} MB, not used for "
            f"{self.days:.0f} days or more, in {self.folder}"
        )


def run_clean(older_than: str = LONG) -> list[UnusedFiles]:
    """Delete files of the cache, and logs of ended processes of Ray, that nothing has used for long.

    Searches, runs in MLflow, exports, and copies of searches in object stores stay.

    Args:
        older_than: The time without use, such as `30d`.

    Returns:
        What was deleted.

    Raises:
        InputError: The time is invalid.

    Example:
        >>> import automl
        >>> automl.run_clean(older_than="365d")
        []
    """
    unused = find_unused(older_than)
    for path in (path for files in unused for path in files.paths):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return unused


def find_unused(older_than: str = LONG) -> list[UnusedFiles]:
    """Return what `run_clean` deletes. Raise InputError if the time is invalid."""
    seconds, rows = parse_seconds(older_than, "--older-than"), []
    temporary = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"  # as Ray chooses
    root, ray = cache_root(), Path(temporary) / "ray"
    candidates = {
        (DECODED, root): [path for path in root.glob("*.arrow") if path.is_file()],
        **{(kind, root / name): [*(root / name).glob("*")] for name, kind in KINDS.items()},
        (SESSIONS, ray): [*_ended_sessions(ray)],
    }
    for (kind, folder), paths in candidates.items():
        uses = {path: _last_use(path) for path in paths if not path.name.endswith(".lock")}
        old = {path: used for path, used in uses.items() if time.time() - used > seconds}
        if old:
            days = (time.time() - max(old.values())) / 86400
            size = sum(state.st_size for path in old for state in _files(path))
            rows.append(UnusedFiles(kind=kind, folder=folder, paths=[*old], size=size, days=days))
    return rows


def _ended_sessions(folder: Path) -> Iterator[Path]:
    """Yield the folders of this user's Ray sessions that no process of this machine names."""
    running: set[bytes] = set()  # words of command lines
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # the process has ended, or is another user's
            running.update(re.split(rb"[^\w-]", file.read_bytes()))
    for session in folder.glob("session_2*"):
        if session.stat().st_uid == os.getuid() and os.fsencode(session.name) not in running:
            yield session


def _files(path: Path) -> Iterator[os.stat_result]:
    """Yield the state of a file, or of all files in a folder."""
    for each in (path, *path.rglob("*")) if path.is_dir() else (path,):
        with suppress(OSError):  # it was deleted meanwhile
            yield each.lstat()


def _last_use(path: Path) -> float:
    """Return the time of the last use [s since 1970]. File systems may note reading once a day only."""
    # Listing a folder is no use of it.
    uses = (max(s.st_mtime, 0 if stat.S_ISDIR(s.st_mode) else s.st_atime) for s in _files(path))
    return max(uses, default=time.time())

"""Deletes a search with its checkpoints."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from attention import InputError
from automl.storage import working_copy
from automl.storage.folder import (
    LOCK,
    SEARCH_FILE,
    NamedSearch,
    find_search,
    is_running,
    locked,
    no_search,
    reached,
    resolve_search,
)
from automl.storage.storage import Storage


@dataclass(frozen=True, kw_only=True)
class Removable:
    """A search that may be deleted.

    Attributes:
        name: The name of the search.
        location: The folder or object store that it is in.
        size: Its size in bytes.
        experiment: The MLflow experiment of its runs, if it is known.

    Example:
        After the example of `run_remove`:

        >>> removed.size > 0
        True
    """

    name: str
    location: Storage
    size: int
    experiment: str | None

    @property
    def said(self) -> str:
        return f"search {self.name} in {self.location}, {self.size / 1e6:,.1f} MB"

    @property
    def stays(self) -> str:
        """What is not deleted."""
        where = f" in experiment {self.experiment}" if self.experiment else ""
        return f"its runs in MLflow{where}, exported and registered models, decoded images"


def find_removable(name: str, storage: str = "searches") -> Removable:
    """The search called `name`, which may be damaged.

    Raises InputError when there is none, or when a process is running it.
    """
    root = Storage(storage)
    with reached(root):
        if name not in root.folders() or not (root / name).has(SEARCH_FILE):  # and no way to another folder
            raise no_search(name, storage)
        location = root / name
        if is_running(location.local or working_copy.folder_of(location), location):
            raise _busy(name)
        size = location.total()
    try:
        experiment = find_search(name, storage)[1].settings.title
    except InputError:  # it is damaged, which may be why it is deleted
        experiment = None
    return Removable(name=name, location=location, size=size, experiment=experiment)


def run_remove(search: str | NamedSearch, storage: str | None = None) -> Removable:
    """Delete a search with its checkpoints, and its working copy on this machine.

    A search can be deleted again if this was interrupted. `Removable.stays` says what is left alone.

    Args:
        search: The name of the search, or its result.
        storage: The storage of the search. By default that of the result, or `searches`.

    Returns:
        What was deleted.

    Raises:
        InputError: There is no such search, it is running, or something cannot be deleted.

    Example:
        After the example of `run_search`:

        >>> removed = automl.run_remove(result)
        >>> removed.name
        'example'
    """
    name, storage = resolve_search(search, storage)
    found = find_removable(name, storage)
    try:
        if found.location.local is not None:
            with locked(found.location.local, name):
                _empty(found.location.local)
            shutil.rmtree(found.location.local)
        else:
            for file in sorted(found.location.files(), key=lambda file: file == SEARCH_FILE):
                found.location.remove(file)
            found.location.clear()
            shutil.rmtree(working_copy.folder_of(found.location), ignore_errors=True)
    except OSError as error:
        raise InputError(
            f"search {name!r} cannot be deleted completely ({error}); fix that and run it again"
        ) from error
    return found


def _empty(folder: Path) -> None:
    """Delete all but the lock, `search.json` last: with it, it can be called again."""
    for path in sorted(folder.iterdir(), key=lambda path: path.name == SEARCH_FILE):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != LOCK:
            path.unlink()


def _busy(name: str) -> InputError:
    return InputError(
        f"search {name!r} is running, or was killed less than a minute ago; stop it before it is deleted"
    )

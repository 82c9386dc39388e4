"""Delete a search with its checkpoints: `automl remove`."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from automl.base.errors import InputError
from automl.storage import folder as search_folder
from automl.storage import working_copy
from automl.storage.metadata import SEARCH_FILE
from automl.storage.storage import Storage


@dataclass(frozen=True, kw_only=True)
class Removable:
    """Search that can be deleted.

    Attributes:
        location: Its folder, possibly in an object store.
        size: Its size [bytes].
    """

    name: str
    location: Storage
    size: int

    @property
    def description(self) -> str:
        """Name, folder and size in one line."""
        return f"search {self.name} in {self.location}, {self.size / 1e6:,.1f} MB"


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
    return Removable(name=name, location=location, size=size)


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

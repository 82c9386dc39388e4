"""Checks that a search's data have not changed since it was created, by the manifest in its folder.

Scores on different data are not comparable. A command that would mix them raises an error that names the
first inputs that differ.
"""

from pathlib import Path

import pyarrow as pa

from automl.base.errors import InputError
from automl.data import shared
from automl.data.manifest import MANIFEST_FILE, Manifest, compare_manifests
from automl.storage.metadata import SEARCH_FILE
from automl.storage.storage import Storage
from automl.task import Split, task_of
from automl.task.task_data import SPLITS
from search.config import TrialConfig


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest of a search's data into its folder."""
    Storage(str(folder)).write(MANIFEST_FILE, manifest.to_bytes())


def restore_manifest(folder: Path, digest: str, config: TrialConfig) -> None:
    """Write the manifest of a search that was killed before it did so, if its data have the same `digest`."""
    if not (folder / MANIFEST_FILE).exists():
        manifest = task_of(config).manifest(config)
        if manifest.digest == digest:
            write_manifest(folder, manifest)


def read_manifest(location: Storage | Path) -> Manifest:
    """Return the manifest of a search. Raises InputError if it is missing or damaged."""
    folder = location if isinstance(location, Storage) else Storage(str(location))
    try:
        return Manifest.from_bytes(folder.read(MANIFEST_FILE))
    except (OSError, ValueError, pa.ArrowException) as error:
        raise InputError(
            f"{folder}/{MANIFEST_FILE}, the list of the search's data, is damaged or missing ({error}); "
            f"without it, changes cannot be detected"
        ) from error


def check_same_data(
    config: TrialConfig, location: Storage | Path, name: str, splits: tuple[Split, ...] = SPLITS
) -> None:
    """Raise InputError, with names, if a trial's data differ from those of the search `name`.

    `location` is the search's folder. `splits` are about to be read. If the search's storage has all of them,
    they cannot have changed. Files are hashed but not decoded.
    """
    task = task_of(config)
    if shared.is_shared(task.shared_name(config), splits):
        return
    if changes := compare_manifests(read_manifest(location), task.manifest(config)):
        raise InputError(
            f"the data have changed since search {name!r} was created, so scores would not be comparable: "
            f"{changes}. Restore the old data, or start a new search."
        )


def check_source(config: TrialConfig, checkpoint: Storage) -> None:
    """Check the data of the search that a checkpoint belongs to, if any."""
    search = find_search_of(checkpoint)
    if search is not None:
        check_same_data(config, search, search.address.partition("?")[0].rpartition("/")[2])


def find_search_of(checkpoint: Storage) -> Storage | None:
    """Return the folder of the search that a checkpoint `trials/NNNN` or `confirm/trials/NNNN` belongs to."""
    folder = checkpoint
    for _ in range(3):
        folder = folder.parent
        try:
            if folder.exists(SEARCH_FILE):
                return folder
        except OSError as error:
            raise InputError(f"{folder} cannot be reached ({error})") from error
    return None


def check_same_manifests(first: Manifest, second: Manifest, names: tuple[str, str]) -> None:
    """Raise InputError, with names, if two searches had different data."""
    if changes := compare_manifests(first, second):
        raise InputError(
            f"{names[0]} and {names[1]} used different data, so their scores are not comparable; "
            f"from the first to the second: {changes}"
        )

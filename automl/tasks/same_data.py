"""Checks whether a search's data have changed since it was made: its folder has a list of them.

Scores on other data are not comparable with its own; a command that would mix them is refused here, with the
names of the first inputs that differ.
"""

from pathlib import Path

import pyarrow as pa

from attention import InputError
from automl.data.manifest import MANIFEST_FILE, Manifest, compare_manifests
from automl.storage.folder import SEARCH_FILE, SearchMetadata
from automl.storage.storage import Storage
from automl.tasks import Split, task_of
from automl.tasks.base import SPLITS
from search.config import TrialConfig


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Put the list of a search's data into its folder."""
    Storage(str(folder)).write(MANIFEST_FILE, manifest.to_bytes())


def restore_manifest(folder: Path, metadata: SearchMetadata, config: TrialConfig) -> None:
    """Write the list of a search that was killed before that, if its data still have its digest."""
    if not (folder / MANIFEST_FILE).exists():
        manifest = task_of(config).manifest(config)
        if manifest.digest == metadata.data:
            write_manifest(folder, manifest)


def read_manifest(location: Storage | Path) -> Manifest:
    """The list of a search's inputs. Raises InputError when it is missing or damaged."""
    place = location if isinstance(location, Storage) else Storage(str(location))
    try:
        return Manifest.from_bytes(place.read(MANIFEST_FILE))
    except (OSError, ValueError, pa.ArrowException) as error:
        raise InputError(
            f"{place}/{MANIFEST_FILE}, the list of the search's data, is damaged or missing ({error}); "
            f"without it, changes cannot be detected"
        ) from error


def check_same_data(
    config: TrialConfig, location: Storage | Path, name: str, splits: tuple[Split, ...] = SPLITS
) -> None:
    """Raises InputError, with names, when a trial's data are not those of the search called `name` any more.

    location: the search's folder. splits: that are about to be read; where the search's own storage has all
    of them, there is nothing that could have changed. Hashes files and decodes none.
    """
    task = task_of(config)
    if task.is_shared(config, splits):
        return
    if found := compare_manifests(read_manifest(location), task.manifest(config)):
        raise InputError(
            f"the data have changed since search {name!r} was made, so scores would not be comparable: "
            f"{found}. Restore the old data, or start a new search."
        )


def check_source(config: TrialConfig, checkpoint: Storage) -> None:
    """`check_same` with the search that a checkpoint's folder is in, if any."""
    search = find_search_of(checkpoint)
    if search is not None:
        check_same_data(config, search, search.address.partition("?")[0].rpartition("/")[2])


def find_search_of(checkpoint: Storage) -> Storage | None:
    """The folder of the search, of which this is `trials/NNNN` or `confirm/trials/NNNN`."""
    place = checkpoint
    for _ in range(3):
        place = place.parent
        try:
            if place.exists(SEARCH_FILE):
                return place
        except OSError as error:
            raise InputError(f"{place} cannot be reached ({error})") from error
    return None


def check_same_manifests(one: Manifest, other: Manifest, names: tuple[str, str]) -> None:
    """Raises InputError, with names, when two searches had other images."""
    if found := compare_manifests(one, other):
        raise InputError(
            f"{names[0]} and {names[1]} used different data, so their scores are not comparable; "
            f"from the first to the second: {found}"
        )

"""The published datasets that `automl data --download NAME` downloads."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from automl.base.errors import InputError, unknown
from automl.base.registry import contributions
from automl.data.download import Remote, fetch_files
from automl.storage.cache_folder import cache_root

NO_LICENSE = "of the photographs' owners"


@dataclass(frozen=True, kw_only=True)
class PublishedDataset:
    """A dataset that can be downloaded.

    Attributes:
        key: its name in the cache, under which a search without `--data` looks for it.
        space: a search space for it.
        downloads_itself: whether the space downloads it by itself, so that `--data` can be omitted.
        inside: a pattern of the folder with the data in the unpacked files.
        license, source: as far as they are known.
    """

    name: str
    about: str
    files: Sequence[Remote]
    key: str
    space: str
    license: str
    source: str
    downloads_itself: bool = False
    inside: str = ""

    @property
    def size(self) -> int:
        """The approximate size of all files in bytes; 0 if unknown."""
        sizes = [file.size for file in self.files]
        return sum(sizes) if all(sizes) else 0


@cache
def published_datasets() -> Mapping[str, PublishedDataset]:
    """Return the datasets of all tasks by name."""
    return {dataset.name: dataset for datasets in contributions("published") for dataset in datasets}


def download_published(name: str) -> tuple[PublishedDataset, Path]:
    """Download a published dataset into the cache, once. Return it with its folder.

    Raises InputError for an unknown name, and if it cannot be downloaded.
    """
    known = published_datasets()
    if name not in known:
        raise InputError(f"{unknown('published dataset', name, known)} `automl data --list` describes them.")
    chosen = known[name]
    folder = fetch_files(chosen.key, chosen.files, cache_root())
    inside = next(folder.glob(chosen.inside), None) if chosen.inside else None
    return chosen, inside or folder


def list_published() -> Iterator[str]:
    """Yield lines with the size, license and source of each dataset."""
    for dataset in published_datasets().values():
        size = f"{dataset.size / 1e9:.2f} GB" if dataset.size else "-"
        yield f"{dataset.name:24}{size:>10}  {dataset.about}"
        unchecked = (
            ""
            if all(file.checksum.is_whole for file in dataset.files)
            else "; not all files have a published hash"
        )
        yield f"{'':36}{dataset.license}; {dataset.source}{unchecked}"
